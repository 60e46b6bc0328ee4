"""Counters of this process as metrics for Prometheus: names, labels, text.

A scrape reads what the last heartbeat has sent, so it waits for no thread that works. Names have the base
units of Prometheus; labels say role, rank, run and incarnation, so that no series goes back when a process
restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import accumulate
from math import isfinite
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pslib.process.reported import Reported, Reporter
from pslib.wire.counters import COORDINATOR, SERVER, TRAINER, Counter

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LABELS = ("role", "rank", "run", "incarnation")
ROLES: Mapping[str, tuple[Counter, ...]] = {"coordinator": COORDINATOR, "server": SERVER, "trainer": TRAINER}
"""Counters of each role, in the order of the reference page."""

_SUFFIXES = {"seconds": ("_s", "_seconds"), "bytes": ("_bytes", "_bytes"), "ratio": ("_share", "_ratio")}
"""By unit: what a counter's name ends with, and what the metric's ends with."""


def metrics_of(role: str) -> list[Counter]:
    """Return the counters of a role that are metrics: the sum of a histogram is a part of it."""
    sums = {one.sum_name for one in ROLES[role]}
    return [one for one in ROLES[role] if one.name not in sums and one.metric is not None]


def metric_name(counter: Counter) -> str:
    """Return the name of a counter's metric, as Prometheus names its series."""
    before, after = _SUFFIXES.get(counter.unit, ("", ""))
    base = counter.metric or counter.name.removesuffix(before)
    return f"pslib_{base}{after}{'_total' if counter.kind == 'counter' else ''}"


class CountersCollector(Collector):
    """Collector of what the members of this process have reported.

    Counters keep what they have counted where a value falls, as those of a table that is loaded again do.

    Parameters
    ----------
    reported : Reported
    """

    def __init__(self, reported: Reported) -> None:
        self._reported = reported
        self._kept: dict[tuple[Reporter, str], tuple[float, float]] = {}
        """Last value of a counter, and the sum of all falls before it."""

    def collect(self) -> Iterator[Metric]:
        """Return a family of each metric that has a value."""
        families: dict[str, Metric] = {}
        for reporter, counters in self._reported.last():
            labels = [str(getattr(reporter, name)) for name in LABELS]
            for counter in metrics_of(reporter.role):
                value: Any = counters.get(counter.name)
                if not counter.is_sound(value) or not _is_finite(value):
                    continue
                name = metric_name(counter)
                family = families.get(name) or families.setdefault(name, _family(counter, name))
                if isinstance(family, HistogramMetricFamily):
                    family.add_metric(labels, *_buckets(counter, counters))
                elif isinstance(family, CounterMetricFamily):
                    family.add_metric(labels, self._grown(reporter, name, value))
                elif isinstance(family, GaugeMetricFamily):
                    family.add_metric(labels, value)
        yield from families.values()

    def _grown(self, reporter: Reporter, name: str, value: float) -> float:
        last, kept = self._kept.get((reporter, name), (0.0, 0.0))
        if value < last:
            kept += last
        self._kept[reporter, name] = value, kept
        return kept + value


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or isfinite(value)


def _family(counter: Counter, name: str) -> Metric:
    if counter.kind == "histogram":
        return HistogramMetricFamily(name, counter.help, labels=LABELS)
    if counter.kind == "counter":
        return CounterMetricFamily(name, counter.help, labels=LABELS)
    return GaugeMetricFamily(name, counter.help, labels=LABELS)


def _buckets(counter: Counter, counters: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative counts by upper bound, and the sum."""
    bounds = [*(repr(bound) for bound in counter.bounds), "+Inf"]
    return list(zip(bounds, accumulate(counters[counter.name]), strict=True)), counters[counter.sum_name]


class Exposition:
    """Text of this process's metrics, for each scrape.

    Parameters
    ----------
    reported : Reported
    """

    def __init__(self, reported: Reported) -> None:
        reported.wanted = True
        self._registry, self._lock = CollectorRegistry(auto_describe=False), threading.Lock()
        self._registry.register(CountersCollector(reported))

    def text(self) -> bytes:
        """Return all metrics in the text format 0.0.4; thread-safe.

        A scrape that passed a later one would take the smaller values of before for a fall.
        """
        with self._lock:
            return generate_latest(self._registry)


SECTION = """## Prometheus

Written from the code by `pslib config page metrics`. Each process serves these metrics at `/metrics`
([how](../guide/operate.md#prometheus)), with the labels `role`, `rank`, `run` (the cluster's id) and
`incarnation`, which differs for each start of a process: its counters begin again at 0, in series of their
own. Values are those of the last heartbeat, at most two seconds old; a coordinator, which sends none, has
figures of the whole run. `pslib config page dashboard` prints a dashboard for Grafana, `pslib config page
alerts` alert rules.
"""


def file_text(name: str) -> str:
    """Return a file of the folder ``prometheus_files``, by its name."""
    return (files("pslib.monitor") / "prometheus_files" / name).read_text(encoding="utf-8")


def metrics_section() -> str:
    """Return the section of the reference page."""
    return "\n".join([SECTION, *_tables()]).rstrip("\n") + "\n"


def _tables() -> Iterator[str]:
    for role in ROLES:
        yield f"### Metrics of a {role}\n"
        yield "| metric | kind | in heartbeats | what |\n|---|---|---|---|"
        for one in metrics_of(role):
            told = "" if role == "coordinator" else f"`{one.name}`"
            yield f"| `{metric_name(one)}` | {one.kind} | {told} | {one.help} |"
        yield ""
