"""Cumulative counters of one trainer process, as sent in its heartbeats."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.client import Client
from pslib.metrics.metrics import LogitBins
from pslib.recorder.status import Status
from pslib.wire.staleness import StalenessCounter

STALENESS_BINS = 33
"""Histogram bins of staleness: 0, 1, ... 31, and more."""


class CacheCounters:
    """Savings of a trainer's row cache; counted by the puller, read by the endpoint's thread."""

    def __init__(self) -> None:
        self.lookups = self.hits = self.bytes_saved = 0

    def looked_up(self, lookups: int, hits: int, bytes_saved: int) -> None:
        """Count one batch."""
        self.lookups += lookups
        self.hits += hits
        self.bytes_saved += bytes_saved


class Progress:
    """Progress of a trainer; written by the compute thread, read by the endpoint's thread.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._bins = LogitBins()
        self.examples = 0
        self.loss_sum = 0.0
        self.staleness_sum = 0
        self.staleness_count = 0
        self.staleness_max = 0
        self.staleness_counts = [0] * STALENESS_BINS
        self.lead_max = 0
        self.cache = CacheCounters()
        self.streams: set[int] = set()
        """Leases that this trainer holds; their positions are read from the session."""

    @classmethod
    def of(cls, client: Client) -> Progress:
        """Return the client's progress: one for all its trainers, so that no counter decreases."""
        reported = client.member.progress
        if isinstance(reported, cls):
            return reported
        client.member.progress = made = cls(client)
        return made

    def trained(self, loss: float, logits: NDArray[Any], labels: NDArray[np.float32], staleness: int) -> None:
        """Count one batch."""
        with self._lock:
            self._bins.add(logits, labels)
            self.examples += labels.size
            self.loss_sum += loss * labels.size
            self.staleness_sum += staleness
            self.staleness_count += 1
            self.staleness_max = max(self.staleness_max, staleness)
            self.staleness_counts[min(staleness, STALENESS_BINS - 1)] += 1

    def status(self) -> Status:
        """Return what is trained so far."""
        with self._lock:
            return Status(
                examples=self.examples,
                loss_sum=self.loss_sum,
                loss_examples=self.examples,
                bins_positive=self._bins.positives.astype(np.int64),
                bins_negative=self._bins.negatives.astype(np.int64),
            )

    def led(self, lead: int) -> None:
        """Record this trainer's lead over the slowest one, in batches, as it begins a batch (ssp)."""
        with self._lock:
            self.lead_max = max(self.lead_max, lead)

    def hold(self, stream: int) -> None:
        """Add a lease, so that its position is reported."""
        with self._lock:
            self.streams.add(stream)

    def drop(self, stream: int) -> None:
        """Drop a lease that is over."""
        with self._lock:
            self.streams.discard(stream)

    def forget_jobs_until(self, job: int) -> None:
        """Drop leases of this job and of earlier ones: the coordinator grants them again."""
        with self._lock:
            self.streams = {stream for stream in self.streams if stream >> 32 > job}

    def held(self) -> list[int]:
        """Streams of the leases that this trainer holds."""
        with self._lock:
            return sorted(self.streams)

    def __call__(self) -> dict[str, Any]:
        """Return all counters as plain values, for a heartbeat."""
        endpoint = self._client.endpoint
        with endpoint.lock:
            session = endpoint.session
            streams = [[s, session.acked_below(s)] for s in self.held()] if session else []
            sent = (session.pushes_sent, session.updates_sent) if session else (0, 0)
            between = session.between if session else StalenessCounter()
            between_counters = {
                "between_sum": between.sum,
                "between_count": between.count,
                "between_max": between.max,
            }
        with self._lock:
            return {
                "examples": self.examples,
                "loss_sum": self.loss_sum,
                "bins_positive": self._bins.positives.tolist(),
                "bins_negative": self._bins.negatives.tolist(),
                "staleness_sum": self.staleness_sum,
                "staleness_count": self.staleness_count,
                "staleness_max": self.staleness_max,
                "staleness_counts": list(self.staleness_counts),
                **between_counters,
                "lead_max": self.lead_max,
                "pushes_sent": sent[0],
                "updates_sent": sent[1],
                "bytes_sent": endpoint.bytes_sent,
                "bytes_received": endpoint.bytes_received,
                "cache_lookups": self.cache.lookups,
                "cache_hits": self.cache.hits,
                "cache_bytes_saved": self.cache.bytes_saved,
                "streams": streams,
            }
