"""Connections: to the cluster that a launcher has started, or to one inside this process."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet, ref

from pslib.client.client import Client
from pslib.client.endpoint import Endpoint
from pslib.client.gradients import check_timeout
from pslib.client.load import OpenLoad
from pslib.client.membership import FREE_RANK, RankRequest
from pslib.client.pending import Pending
from pslib.clock import SystemClock
from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE, KEYS_VARIABLE, ClusterConfig, Timing
from pslib.errors import ConfigurationError, PslibError, UnavailableError, WaitTimeoutError
from pslib.process.excepthook import uncaught_in_a_line
from pslib.process.shutdown import preemption
from pslib.server.embedded import Embedded
from pslib.storage import check_local, unwritable
from pslib.table.descriptions import models_of
from pslib.text import counted
from pslib.transport import Keys, Transport, ZmqTransport, read_keys
from pslib.validation import came, checked, checked_calls
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.messages import DumpStacks, Events, Result, SaveSoon, Scale, Stats, Status, Stop

log = logging.getLogger(__name__)


STACKS_POLL_S = 0.2
"""Interval of requests for stacks that have not come."""

_embedded: WeakSet[Cluster] = WeakSet()
"""Clusters inside this process."""
_given: Keys | None = None
_rank_request = FREE_RANK


def use_keys(keys: Keys | None) -> None:
    """Set the keys that `connect` and `watch` take by default: a worker's, from its launcher."""
    global _given  # noqa: PLW0603  (a secret that is in no argument, file or variable must be somewhere)
    _given = keys


def use_rank(rank_request: RankRequest) -> None:
    """Set the rank that the next `connect` takes: a worker's, from its launcher."""
    global _rank_request  # noqa: PLW0603  (a child would inherit an environment, and take its parent's rank)
    _rank_request = rank_request


def take_rank() -> RankRequest:
    """Return the launcher's rank for this process, once: a second connection is another member."""
    rank_request = _rank_request
    use_rank(FREE_RANK)
    return rank_request


def _keys_of(keys: Keys | str | os.PathLike[str] | None) -> Keys | None:
    """Return the given keys, or read them from a file; else the launcher's, else the environment's."""
    if isinstance(keys, Keys):
        return keys
    path = keys or (os.environ.get(KEYS_VARIABLE) if _given is None else None)
    return read_keys(path) if path else _given


STATUS_LISTED = 8
"""Longest list of a status that its repr shows: the bins of the AUC have 512 numbers."""
_INTERRUPTED = {"phase": "interrupted", "error": None}
"""End of the status of a cluster whose script Ctrl-C ends."""
PUBLIC = ("client", "close", "embedded", "rank", "status", "trainers")
"""Names of a `Cluster` that completion offers; a `Trainer` uses the others."""


class ClusterStatus(dict[str, Any]):
    """Counters of a cluster; the repr has those that are not 0 or empty, and the lengths of long lists."""

    def __repr__(self) -> str:
        told = [f"{name!r}: {_short(value)}" for name, value in self.items() if value]
        empty = len(self) - len(told)
        return f"{{{', '.join([*told, *([f'... {empty} that are 0 or empty'] if empty else [])])}}}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return repr(ClusterStatus(value))
    is_long = isinstance(value, list) and len(value) > STATUS_LISTED
    return f"[... {len(value)} values]" if is_long else repr(value)


class Cluster:
    """Connection of this process to a cluster; a context manager, which also closes when the process ends.

    One inside this process closes when nothing refers to it any more, as where a cell of a notebook that
    makes it runs again.

    Attributes
    ----------
    client : Client
        Pull and push.
    """

    def __init__(self, client: Client, embedded: Embedded | None) -> None:
        self.client = client
        self._embedded = embedded
        self._jobs, self._begun = 1, False
        self.open_load: OpenLoad | None = None
        """A load that is not over; see `pslib.trainer.call_log.Calls`."""
        self._at_close: list[tuple[Callable[[], None], Callable[[dict[str, Any]], None]]] = []
        self._at_end: list[Callable[[], None]] = []
        self._models: dict[str, Mapping[str, Any]] = {}
        self._call, self._calling, self._without = threading.RLock(), "", ""
        self._closed, self._process = False, os.getpid()
        self._ending: dict[str, Any] = {}  # of a block that an exception has ended: phase and error
        me = ref(self) if embedded else lambda: self  # its client may be in use without it
        self._at_exit = partial(_close_at_exit, me)
        atexit.register(self._at_exit)

    def __del__(self) -> None:
        # In a thread, to which it may belong: the collector may run in one of those that closing waits for.
        if self._embedded and not self._closed:
            threading.Thread(target=self._close, args=(False,), name="pslib-close").start()

    def __repr__(self) -> str:
        servers = counted(len(self.client.servers), "server")
        return f"<Cluster of {servers}, {'in this process' if self.embedded else f'trainer {self.rank}'}>"

    def __dir__(self) -> list[str]:
        return [*PUBLIC, *(name for name in super().__dir__() if name.startswith("__"))]

    @property
    def rank(self) -> int:
        """This trainer's number, from 0."""
        return self.client.rank

    @property
    def trainers(self) -> int:
        """Number of trainers that the cluster was started with."""
        return self.client.joined.config.trainers

    @property
    def embedded(self) -> bool:
        """True if servers run in this process."""
        return self._embedded is not None

    def next_job(self, begins: bool = False) -> int:
        """Number of the next collective call: from 1 on, so that there is one for a load before all others.

        With ``begins`` that is 0, where nothing was called before: the calls of a training that goes on from
        a checkpoint then have the numbers that they had, which stand in the names of its pushes.
        """
        if begins and not self._begun:
            self._begun = True
            return 0
        self._begun = True
        self._jobs += 1
        return self._jobs - 1

    @property
    def begun(self) -> bool:
        """True after the first collective call; an unfinished load before all others does not count."""
        return self._begun and (self.open_load is None or self.open_load.number > 0)

    @contextmanager
    def claim(self, model: Mapping[str, Any]) -> Iterator[None]:
        """Record, when the block succeeds, that a `Trainer` here trains a model.

        Raises
        ------
        ConfigurationError
            If there is another one of the same table, or of the dense parameters: neither would know that
            they train each other's.
        """
        table = model["table"]
        if table in self._models:
            raise ConfigurationError(
                f"this cluster has a Trainer already, of {self._models[table]['model']} and table {table}, "
                f"whose rows and dense parameters another one would train too: use that one, give this "
                f"{model['model']} a cluster of its own (pslib.connect() again), or say Trainer(..., "
                "share=True) if both shall train the same parameters"
            )
        models = models_of(self._models, [model])
        yield
        self._models = models

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Refuse collective calls of other threads while the block runs; calls within it are part of it.

        Raises
        ------
        ConfigurationError
            If another thread is in one, or in a block of `without_calls`: calls have an order, which all
            trainers share.
        """
        if not self._call.acquire(blocking=False):
            raise ConfigurationError(
                f"{what}: another thread is in {self._calling or 'a call'} of a Trainer of this cluster; "
                "make one call after the other"
            )
        before, self._calling = self._calling, self._calling or what
        try:
            if self._without:
                raise ConfigurationError(
                    f"{what}: expected no call of a Trainer in {self._without}: only one trainer is in it, "
                    "maybe within a fit; make the call after fit, or in on_epoch_end"
                )
            yield
        finally:
            self._calling = before
            self._call.release()

    @contextmanager
    def without_calls(self, where: str) -> Iterator[None]:
        """Refuse collective calls while the block runs, which one trainer alone is in."""
        self._without = where
        try:
            yield
        finally:
            self._without = ""

    def status(self) -> ClusterStatus:
        """Cumulative counters of the whole cluster, as of the last heartbeats."""
        answer = self.client.ask_coordinator(Status())
        assert isinstance(answer, Result)
        return ClusterStatus(answer.values)

    def watcher(self) -> Watcher:
        """Return an observer of an embedded cluster; close it before the cluster."""
        assert self._embedded is not None
        embedded = self._embedded
        return Watcher(embedded.address, embedded.cluster_id, transport=embedded.transport)

    def at_close(self, before: Callable[[], None], after: Callable[[dict[str, Any]], None]) -> None:
        """Call ``before`` when an embedded cluster begins to close, and ``after`` with its last status."""
        self._at_close.append((before, after))

    def at_end(self, last: Callable[[], None]) -> None:
        """Call ``last`` when this process has left the cluster."""
        self._at_end.append(last)

    def close(self) -> None:
        """Leave the cluster; an embedded one ends. In a fork nothing happens: the rank is its parent's.

        Called while an error is on its way (`except`, `finally`) it is that error's end: what it ended counts
        as work that is not done. A script that has caught it and gone on is through with its work.
        """
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt):
            self._ending = _INTERRUPTED
        self._close(well=error is None)

    def _close(self, well: bool) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        try:
            for before, _after in self._at_close:
                before()
            self.client.close(well)
        finally:  # also after another Ctrl-C
            for last in self._at_end:
                last()
            if self._embedded:
                self._embedded.close()
        if self._embedded:
            for _before, after in self._at_close:
                after(self._embedded.last_status() | self._ending)

    def __enter__(self) -> Cluster:
        if self._closed:
            raise ConfigurationError(
                "this cluster is closed: expected an open one; call pslib.connect(...) again"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        well = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        if isinstance(error, KeyboardInterrupt):
            self._ending = _INTERRUPTED
        elif error is not None and not well:
            why = str(error) if isinstance(error, PslibError) else f"{type(error).__name__}: {error}"
            self._ending = {"phase": "failed", "error": why}
        self._close(well)


def _close_at_exit(cluster: Callable[[], Cluster | None]) -> None:
    """Close at the end of a script that did not: its outcome is unknown."""
    if (found := cluster()) is not None:
        found._close(well=False)


@checked()
def connect(
    coordinator: str | None = None,
    *,
    cluster_id: str | None = None,
    servers: int = 1,
    shard_threads: int = 1,
    partition_bits: int = 12,
    server_memory_bytes: int = 0,
    credit_bytes: int = 1 << 30,
    durability: str = "memory",
    log: str | os.PathLike[str] | None = None,
    log_bytes: int = 8 << 30,
    keys: Keys | str | os.PathLike[str] | None = None,
) -> Cluster:
    """Join a cluster as a trainer, or start one inside this process.

    Under a launcher (``pslib launch``, ``pslib train``) the environment says where the cluster is, and
    ``servers`` and all after it are the launcher's. Otherwise coordinator and
    servers run as threads of this process.

    Parameters
    ----------
    coordinator : str or None
        Address; default: the environment's PSLIB_COORDINATOR.
    cluster_id : str or None
        Default: the environment's PSLIB_CLUSTER_ID.
    servers, shard_threads, partition_bits, server_memory_bytes, credit_bytes : int
        Settings of an embedded cluster; see `pslib.config.ClusterConfig`.
    durability : {"memory", "log", "disk"}
        Durability of an embedded cluster: rows may survive the end of this process, or a loss of power.
    log : path or None
        Folder of its logs, with ``durability``: what is in it comes back.
    log_bytes : int
        See `pslib.config.ClusterConfig`.
    keys : Keys, path or None
        To join an encrypted cluster: a key file of ``pslib keys make``. Default: the launcher's, or the file
        that the environment's PSLIB_KEYS names.

    Raises
    ------
    WaitTimeoutError
        If the coordinator, or another process that is needed, does not answer.
    ConfigurationError
        If a number is out of range, the log can't be written, or there is an address but no cluster id.
    """
    uncaught_in_a_line()
    coordinator = coordinator or os.environ.get(COORDINATOR_VARIABLE)
    cluster_id = cluster_id or os.environ.get(CLUSTER_ID_VARIABLE)
    if coordinator:
        if not cluster_id:
            raise ConfigurationError(
                f"coordinator {coordinator}: its cluster id is missing; set {CLUSTER_ID_VARIABLE}"
            )
        return _join_processes(coordinator, cluster_id, _keys_of(keys))
    config = ClusterConfig(
        servers=servers,
        shard_threads=shard_threads,
        partition_bits=partition_bits,
        server_memory_bytes=server_memory_bytes,
        credit_bytes=credit_bytes,
        durability=durability,
        log_bytes=log_bytes,
    )
    if (durability == "memory") != (log is None):
        raise ConfigurationError(
            f"durability {durability}: expected {'no' if log else 'a folder as'} log, got {log!r}"
        )
    check_local("log", log)
    if log is not None and (why := unwritable(Path(log).absolute())):
        raise ConfigurationError(f"log: {log} can't be written to: {why}; give another folder")
    if _embedded:
        gc.collect()  # one that nothing refers to is in cycles, and would keep its tables meanwhile
    embedded = Embedded(config, log=None if log is None else str(Path(log).absolute()))
    try:
        cluster = Cluster(embedded.join(), embedded)
        _embedded.add(cluster)
        return cluster
    except BaseException:
        embedded.close()
        raise


def _join_processes(coordinator: str, cluster_id: str, keys: Keys | None) -> Cluster:
    transport = ZmqTransport(keys=keys)
    try:
        client = Client(transport, coordinator, cluster_id, SystemClock(), rank_request=take_rank())
        cluster = Cluster(client, None)
        preemption.drain_s = cluster.client.joined.config.timing.drain_s
    except BaseException:
        transport.close()
        raise
    cluster.at_end(transport.close)
    return cluster


@checked_calls("status", "events", "stacks", "server_stats", "ask", "stop", "scale")
class Watcher:
    """Observer of a cluster: reads its status, can scale or end it, and takes no part in its work.

    Parameters
    ----------
    coordinator, cluster_id : str
        Address of the coordinator, and id of its cluster.
    keys : Keys or None
        Keys of an encrypted cluster.
    transport : Transport or None
        Default: one over ZeroMQ, with the keys; closed with the watcher.

    Raises
    ------
    ConfigurationError
        If an argument, of this or of a call, is of another kind or out of range.
    """

    @checked()
    def __init__(
        self,
        coordinator: str,
        cluster_id: str,
        keys: Keys | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not cluster_id:  # no process would ever answer
            raise ConfigurationError("cluster_id: expected that of a run, see its logs/cluster.json; got ''")
        self._coordinator, self._own_transport = coordinator, transport is None
        self._transport = transport or ZmqTransport(keys=keys)
        link, first_request_id = self._transport.connect(), secrets.randbits(63)
        self._endpoint = Endpoint(link, Codec(cluster_id), Timing(), SystemClock(), first_request_id)

    def status(self, timeout_s: float = 3.0, *, details: bool = False) -> ClusterStatus:
        """Cumulative counters; UnavailableError when the coordinator does not answer.

        With ``details`` also ``members``, a mapping each, and ``work``, the leases of each trainer.
        """
        answer = self.ask(self._coordinator, Status(details), timeout_s)
        assert isinstance(answer, Result)
        return ClusterStatus(answer.values)

    def events(self, after: int = 0) -> dict[str, Any]:
        """Return the run's last ``events`` with numbers above ``after``, and the number of the ``last``."""
        answer = self.ask(self._coordinator, Events(after), 3.0)
        assert isinstance(answer, Result)
        return dict(answer.values)

    def stacks(self, role: str, rank: int, timeout_s: float = 15.0) -> str:
        """Return where the threads of a process are, as text: lines of code, and no values.

        The process sends it with a heartbeat. One that is stopped sends none.

        Raises
        ------
        ConfigurationError
            If there is no such live process.
        AccessError
            If the key is not that of an administrator or a server.
        WaitTimeoutError
            If the process sends nothing in time.
        """
        check_timeout(timeout_s, or_none="")
        clock = SystemClock()
        until_s = clock.now_s() + timeout_s
        while True:
            answer = self.ask(self._coordinator, DumpStacks(role, rank), 3.0)
            assert isinstance(answer, Result)
            if (text := answer.values["stacks"]) is not None:
                return str(text)
            if clock.now_s() > until_s:
                raise WaitTimeoutError(
                    f"waited {timeout_s:g} s for the stacks of {role} {rank}, which has sent none; is it "
                    "stopped, or cut off? pslib doctor says when it was heard"
                )
            clock.sleep_s(STACKS_POLL_S)

    def server_stats(self, addresses: Sequence[str], timeout_s: float = 3.0) -> list[dict[str, Any] | None]:
        """Counters of each server, asked all at once; None for one that has not answered in time.

        An empty address belongs to no process.
        """
        check_timeout(timeout_s, or_none="")
        pending = [
            self._endpoint.ask(address, Stats(), patience_s=timeout_s) if address else None
            for address in addresses
        ]
        return [None if one is None else _values_of(one) for one in pending]

    def ask(self, address: str, message: Message, timeout_s: float = 10.0) -> Message:
        """Ask one process; a refusal is an exception."""
        check_timeout(timeout_s, or_none="")
        return self._endpoint.ask(address, message, patience_s=timeout_s).wait()

    def save_soon(self, last: bool = False) -> bool:
        """Request a checkpoint of the training now; return whether there is a training that can be saved.

        The status says ``saves_soon`` until it is complete. ``last``: trainers stay paused from then on, for
        at most `pslib.config.Timing.drain_s`; the caller ends the run, and the checkpoint has all of it.
        """
        answer = self.ask(self._coordinator, SaveSoon(last))
        return isinstance(answer, Result) and bool(answer.values["asked"])

    def stop(self, reason: str, failed: bool = False) -> None:
        """Ask the coordinator to end the run: all processes leave (or fail, with the reason)."""
        self.ask(self._coordinator, Stop(reason, failed), 3.0)

    def scale(self, servers: int, drain: Sequence[int] = ()) -> dict[str, Any]:
        """Set the number of servers that own all units (0: as many as now); those in ``drain`` own none.

        Returns
        -------
        dict
            ``moves`` of the status: the number of ``awaited`` servers that are to be started.

        Raises
        ------
        ConfigurationError
            If there can't be so many.
        """
        if servers not in range(ClusterConfig.SERVERS_MAX + 1):
            raise ConfigurationError(f"servers: expected 0..{ClusterConfig.SERVERS_MAX}, got {came(servers)}")
        ranks = range(ClusterConfig.SERVERS_MAX)
        if not all(rank in ranks for rank in drain):
            raise ConfigurationError(f"drain: expected numbers of servers, got {came(drain)}")
        answer = self.ask(self._coordinator, Scale(servers, list(drain), secrets.randbits(62)))
        assert isinstance(answer, Result)
        return dict(answer.values)

    def close(self) -> None:
        """Stop watching."""
        self._endpoint.close()
        if self._own_transport:
            self._transport.close()


def _values_of(pending: Pending[Message]) -> dict[str, Any] | None:
    try:
        answer = pending.wait()
    except UnavailableError:
        return None
    return dict(answer.values) if isinstance(answer, Result) else None


@checked()
def watch(coordinator: str, cluster_id: str, keys: Keys | str | os.PathLike[str] | None = None) -> Watcher:
    """Observe the cluster whose coordinator is at this address; ``keys`` as for `connect`."""
    return Watcher(coordinator, cluster_id, _keys_of(keys))
