"""Clusters in threads of this process, for tests: coordinator, servers, and as many trainers as wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.cluster import Cluster
from pslib.config import ClusterConfig, Timing
from pslib.server.embedded import Embedded
from pslib.transport import Transport
from tests.support.waiting import PATIENCE_S, wait_until

ResultT = TypeVar("ResultT")

QUICK = Timing(
    heartbeat_s=0.1, silence_s=0.8, retry_s=0.2, retry_max_s=0.5, request_s=3.0, start_s=10.0, report_s=5.0
)
"""Waits that let a test see a lost peer within a second."""


def own_threads(but: Collection[threading.Thread] = ()) -> list[str]:
    """Names of pslib's threads that run now, without some."""
    return sorted(thread.name for thread in threads_of_pslib() if thread not in but)


def threads_of_pslib() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pslib-")]


class Trainers:
    """An embedded cluster that any number of trainers of this process join."""

    def __init__(
        self,
        servers: int = 1,
        trainers: int = 1,
        *,
        transport: Transport | None = None,
        listen: str = "memory:test:0",
        **settings: Any,
    ) -> None:
        small = {"partition_bits": 7, "dense_blocks": 8}
        config = ClusterConfig(servers=servers, trainers=trainers, **small | settings)
        self.embedded = Embedded(config, transport, listen)
        self.listen = listen
        self.clusters: list[Cluster] = []
        self._opened = threading.Lock()

    def client(self, timing: Timing | None = None) -> Client:
        """A bare client; the caller closes it."""
        return Client(
            self.embedded.transport, self.embedded.address, self.embedded.cluster_id, SystemClock(), timing
        )

    def join(self) -> Cluster:
        """One trainer's place in the cluster; closed at the end."""
        cluster = Cluster(self.embedded.join(), None)
        with self._opened:
            self.clusters.append(cluster)
        return cluster

    def run(self, *scripts: Callable[[Cluster], ResultT]) -> list[ResultT | BaseException]:
        """Each script as a trainer in a thread of its own; what they returned or raised, in order.

        The coordinator hears of them in that order, so that in a new cluster the first script has rank 0.
        """
        results: dict[int, ResultT | BaseException] = {}
        threads: list[threading.Thread] = []

        def play(index: int) -> None:
            try:
                with self.join() as cluster:
                    results[index] = scripts[index](cluster)
            except BaseException as error:
                results[index] = error

        for index in range(len(scripts)):
            known = self.ever()
            threads.append(threading.Thread(target=play, args=(index,), daemon=True))
            threads[-1].start()
            wait_until(
                lambda known=known, index=index: self.ever() > known or index in results,
                PATIENCE_S,
                "a trainer to be heard",
                pause_s=0.001,
            )
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"a trainer hangs; {own_threads()}"
        return [results[index] for index in range(len(scripts))]

    def results(self, *scripts: Callable[[Cluster], ResultT]) -> list[Any]:
        """Run scripts of which none may raise, and give what they returned."""
        results = self.run(*scripts)
        for result in results:
            assert not isinstance(result, BaseException), result
        return results

    def last_status(self) -> dict[str, Any]:
        """Close, and give the status of the end."""
        self.close()
        return self.embedded.last_status()

    def ever(self) -> int:
        """Return the number of trainers that the coordinator has ever heard of."""
        return len(self.embedded.coordinator.session.members.ever("trainer"))

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close()
        self.embedded.close()


@contextmanager
def cluster_of(servers: int = 1, trainers: int = 1, **about: Any) -> Iterator[Trainers]:
    """A cluster for the body; no thread of it is left behind.

    ``about``: ``transport``, ``listen``, and settings of its `ClusterConfig`.
    """
    before = threads_of_pslib()  # one of an earlier test may end meanwhile
    running = Trainers(servers, trainers, **about)
    try:
        yield running
    finally:
        running.close()
    wait_until(  # one that has been told to end, as that of a cut, may take a moment for it
        lambda: not own_threads(but=before), 20, lambda: f"threads to end: {own_threads(but=before)}"
    )


def vanish(cluster: Cluster, gone: threading.Event | None = None) -> None:
    """Silence a trainer without a leave, as kill -9 does; then set ``gone``."""
    cluster.client.member.stop_heartbeats()
    cluster.client.endpoint.close()
    if gone is not None:
        gone.set()
