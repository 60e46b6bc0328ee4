"""Cumulative counters of one trainer process, as sent in its heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.client import Client
from pslib.clock import Clock
from pslib.metrics.metrics import LogitBins
from pslib.process.platform import resident_bytes
from pslib.recorder.status import Status
from pslib.schema import Schema
from pslib.wire.counters import STALENESS_BINS, Durations
from pslib.wire.staleness import StalenessCounter

FIELDS_MAX = 256
"""Fields whose keys are counted: their lists are in every heartbeat."""
FIELDS_EVERY = 64
"""Batches of which one has its keys counted by field, which takes 0.3 ms for 26 fields of 4,096 examples."""


class CacheCounters:
    """Savings of a trainer's row cache; counted by the puller, read by the endpoint's thread."""

    def __init__(self) -> None:
        self.lookups = self.hits = self.bytes_saved = 0

    def looked_up(self, lookups: int, hits: int, bytes_saved: int) -> None:
        """Count one batch."""
        self.lookups += lookups
        self.hits += hits
        self.bytes_saved += bytes_saved


class StageTimes:
    """Seconds that a trainer's pipeline has spent in its stages; each attribute has one writing thread.

    Parameters
    ----------
    clock : Clock

    Attributes
    ----------
    now_s : callable
        The clock's time.
    read_s : float
        The reader at work.
    pace_s, pull_s : float
        The puller held by the staleness bound; and at work, or waiting for credit.
    wait_batch_s, wait_rows_s, wait_pace_s, compute_s : float
        The computing thread waiting for a batch that the reader has not read; for rows; for the staleness
        bound; and computing. With ``send_s`` these add up to its time, but for its waits in a checkpoint.
    send_s : float
        Gradients handed over by the computing thread, which waits until there is room for them.
    """

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.now_s
        self.read_s = self.pace_s = self.pull_s = 0.0
        self.wait_batch_s = self.wait_rows_s = self.wait_pace_s = self.compute_s = self.send_s = 0.0

    def reading(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Pass batches on, and count the time that each of them takes."""
        began_s = self.now_s()
        for batch in batches:
            self.read_s += self.now_s() - began_s
            yield batch
            began_s = self.now_s()

    def awaited(self, began_s: float, pace_s: float, pull_s: float) -> None:
        """Count a wait for a pulled batch, by what the puller did meanwhile.

        Parameters
        ----------
        began_s, pace_s, pull_s : float
            Time, and the puller's times, when it began.
        """
        waited_s = self.now_s() - began_s
        paced_s = min(waited_s, self.pace_s - pace_s)
        pulled_s = min(waited_s - paced_s, self.pull_s - pull_s)
        self.wait_pace_s += paced_s
        self.wait_rows_s += pulled_s
        self.wait_batch_s += waited_s - paced_s - pulled_s

    def computed(self, came_s: float, send_s: float) -> None:
        """Count a computation that began at ``came_s``, when ``send_s`` had this value."""
        self.compute_s += max(0.0, self.now_s() - came_s - (self.send_s - send_s))

    def counters(self) -> dict[str, float]:
        """Return the counters of a heartbeat."""
        return {
            "read_s": self.read_s,
            "wait_batch_s": self.wait_batch_s,
            "wait_rows_s": self.wait_rows_s,
            "compute_s": self.compute_s,
            "push_wait_s": self.wait_pace_s + self.send_s,
        }


class KeyCounters:
    """Keys of the trained batches, and of one in `FIELDS_EVERY` those of each field."""

    def __init__(self) -> None:
        self.batches = self.keys = self.distinct_keys = self.field_batches = 0
        self.field_names: tuple[str, ...] = ()
        self._field_keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._field_distinct: NDArray[np.int64] = np.zeros(0, np.int64)

    def use_fields(self, schema: Schema) -> None:
        """Count by the fields of this schema from now on."""
        sparse, ragged = [one.name for one in schema.sparse], [one.name for one in schema.ragged]
        names = (*sparse, *ragged)[:FIELDS_MAX]
        if names != self.field_names:
            self.field_names, self.field_batches = names, 0
            self._field_keys, self._field_distinct = np.zeros((2, len(names)), np.int64)

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        self.keys += batch.sparse.size + sum(ragged.values.size for ragged in batch.ragged.values())
        self.distinct_keys += batch.keys.size
        if self.batches % FIELDS_EVERY == 0 and self.field_names:
            self._add_fields(batch)
        self.batches += 1

    def _add_fields(self, batch: Batch) -> None:
        columns = [*batch.sparse.T, *(ragged.values for ragged in batch.ragged.values())]
        seen = np.zeros(batch.keys.size, np.bool_)
        for number, places in enumerate(columns[: len(self.field_names)]):
            seen[:] = False
            seen[places] = True
            self._field_keys[number] += places.size
            self._field_distinct[number] += np.count_nonzero(seen)
        self.field_batches += 1

    def counters(self) -> dict[str, Any]:
        """Return the counters of a heartbeat."""
        return {
            "batches": self.batches,
            "keys": self.keys,
            "distinct_keys": self.distinct_keys,
            "field_names": list(self.field_names),
            "field_batches": self.field_batches,
            "field_keys": self._field_keys.tolist(),
            "field_distinct": self._field_distinct.tolist(),
        }


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
        self.times = StageTimes(client.endpoint.machine_clock)
        self.keys = KeyCounters()
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

    def trained(self, loss: float, logits: NDArray[Any], batch: Batch, staleness: int) -> None:
        """Count one batch."""
        with self._lock:
            self._bins.add(logits, batch.labels)
            self.examples += len(batch)
            self.loss_sum += loss * len(batch)
            self.keys.add(batch)
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
            acks = session.acks if session else Durations()
            ack_counters = {"ack_counts": list(acks.counts), "ack_s": acks.sum_s}
            in_flight = endpoint.requests.shares.all_in_flight_bytes
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
                "pushes_resent": endpoint.requests.pushes_resent,
                "bytes_in_flight": in_flight,
                **ack_counters,
                **self.times.counters(),
                **self.keys.counters(),
                "rss_bytes": resident_bytes(),
                "streams": streams,
            }
