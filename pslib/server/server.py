"""Server: one receive thread and K shard threads, each of which alone owns its partitions."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from pslib.client.endpoint import Endpoint
from pslib.client.membership import FREE_RANK, Joined, MemberHandle, RankRequest, join
from pslib.clock import Clock, SystemClock
from pslib.config import ANY_RANK, NEXT_GENERATION, ClusterConfig, Timing
from pslib.errors import ConfigurationError, PreemptedError, PslibError
from pslib.process.health import health
from pslib.process.platform import resident_bytes
from pslib.process.shutdown import preemption
from pslib.server.durable_ack import DurableAck
from pslib.server.hot_keys import hot_share
from pslib.server.migration_thread import MigrationThread
from pslib.server.rejoin import Rejoin
from pslib.server.requests import ShardRequest
from pslib.server.session import ServerSession
from pslib.server.shard_thread import SHORT_ROWS, ShardThread, load_again
from pslib.shard.shard import Shard
from pslib.transport import Keys, Transport, ZmqTransport
from pslib.update_log import ServerLog, ShardLog, SyncThread
from pslib.wire.codec import Buffer, Codec
from pslib.wire.counters import merge_results
from pslib.wire.fields import Message
from pslib.wire.flow_control import CreditPool
from pslib.wire.messages import Keep, Release

log = logging.getLogger(__name__)
TURN_S = 0.1
TICK_S = 0.02
"""Interval of credit checks. Credit is held for seconds; a check after each message costs as much as a
message.
"""
IO_THREADS = 2
"""ZeroMQ threads. With one, a short request waits while a long one is copied from another connection."""
LEAVE_S = 2.0
"""Time that a server asked to leave keeps for its last replies and the end of its log."""


class Server:
    """One server of a cluster.

    Parameters
    ----------
    transport : Transport
        Transport to listen on and to reach the coordinator.
    coordinator, cluster_id : str
        The cluster to join.
    listen : str
        Address; port 0 means any free one.
    clock : Clock
        Time source.
    rank_request : RankRequest
        Rank to take, and generation.
    log : ServerLog or None
        Log of a predecessor, recovered first; None: a cluster without logs.
    returns : bool
        True if a successor with the same log follows, wherever the process is asked to leave: it leaves at
        once then, with the units that it owns, in place of handing them to others.

    Raises
    ------
    ConfigurationError
        When the address is taken, or the cluster has no rank for another server.
    WaitTimeoutError
        When the coordinator or the other servers do not come.
    """

    def __init__(
        self,
        transport: Transport,
        coordinator: str,
        cluster_id: str,
        listen: str,
        clock: Clock,
        rank_request: RankRequest = FREE_RANK,
        log: ServerLog | None = None,
        returns: bool = False,
    ) -> None:
        self._clock, self._log, self._returns = clock, log, returns
        self._sync: SyncThread | None = None
        self._lock = threading.Lock()
        """Lock of link and session: the receive thread takes requests, shard threads send replies."""
        self._streams_done_below = 0
        self._stopped = False
        self._tick_s = 0.0
        self._busy_s = 0.0
        """Work of the receive thread on requests."""
        self._failure: BaseException | None = None
        self._hands: MigrationThread | None = None
        codec = Codec(cluster_id)
        with ExitStack() as undone:  # an error releases the log's folder and the address
            joined, shards, journals = self._join(undone, transport, coordinator, codec, listen, rank_request)
            self._set_up(undone, codec, joined, shards, journals)
            self._member.start_heartbeats(joined)
            undone.pop_all()

    def _set_up(
        self,
        undone: ExitStack,
        codec: Codec,
        joined: Joined,
        shards: list[Shard],
        journals: list[ShardLog | None],
    ) -> None:
        """Build the serving parts by the cluster's configuration. undone: gets their clean-up."""
        config = joined.config
        self._may_be_followed = config.servers_come_back
        self._endpoint.use_timing(config.timing)
        preemption.drain_s = config.timing.drain_s
        self.rank = joined.rank
        credit = CreditPool(config.grant_bytes, config.asking.request_s)
        gate = self._gate(config)
        if self._sync is not None:
            undone.callback(self._sync.close)
        self._session = ServerSession(codec, shards, credit, gate)
        self._threads: list[ShardThread] = []
        for shard, journal in zip(shards, journals, strict=True):
            self._threads.append(ShardThread(shard, self._done, self._fail, journal))
            undone.callback(self._threads[-1].finish)
        if joined.begins:
            self._session.rejoin = self._rejoin(joined.begins, shards)
        self._member.progress = self._progress
        self._member.on_order = self._link.wake
        self._member.on_map = lambda new_map: self._moves_over(new_map.version)
        self._hands = MigrationThread(
            self._endpoint,
            self._member,
            self._clock,
            self._ask_shards,
            shards[0].setup_message,
            self._moves_over,
        )
        self._member.on_hand = self._begin_hands

    def _join(
        self,
        undone: ExitStack,
        transport: Transport,
        coordinator: str,
        codec: Codec,
        listen: str,
        rank_request: RankRequest,
    ) -> tuple[Joined, list[Shard], list[ShardLog | None]]:
        """Recover the log, listen, and join the cluster. undone: gets their clean-up."""
        timing = Timing()  # until the coordinator sends the cluster's
        if self._log is not None:
            undone.callback(self._close_log)
            self._log.recover(load_again)
            if rank_request.generation != NEXT_GENERATION:
                rank_request = RankRequest(rank_request.rank, self._log.generation)
        self._link = transport.listen(listen)
        undone.callback(self._link.close)
        self._endpoint = Endpoint(transport.connect(), codec, timing, self._clock, secrets.randbits(63))
        undone.callback(self._endpoint.close)
        self._member = MemberHandle(self._endpoint, coordinator, "server", self._link.address, rank_request)
        self._member.empty = self._log is None or self._log.is_empty
        joined = join(self._member, timing.start_s)
        return joined, *self._shards(joined)

    def _shards(self, joined: Joined) -> tuple[list[Shard], list[ShardLog | None]]:
        """Return shards recovered from logs, or new ones that own what the map says; and their journals."""
        config = joined.config
        journals: list[ShardLog | None] = [None] * config.shard_threads
        if config.durability == "memory":
            shards = [
                Shard(
                    config.partition_bits,
                    config.dense_blocks,
                    index,
                    config.shard_threads,
                    memory_bytes=config.shard_memory_bytes,
                )
                for index in range(config.shard_threads)
            ]
        elif self._log is None:
            raise ConfigurationError(
                f"durability {config.durability}: a server of this cluster needs a folder for its log and a "
                "rank; start it with --log FOLDER --rank R"
            )
        else:
            shards = self._log.begin(config)
            journals = list(self._log.journals(config.log_bytes))
        for index, shard in enumerate(shards):
            shard.told = shards[0].told
            if self._log is None or self._log.logs[index].last == 0:
                if joined.begins:
                    Rejoin.strip(shard)
                shard.own(joined.map.units_of(joined.rank))
        if config.durability == "disk" and self._log is not None:
            for one in self._log.logs:  # the next heartbeat reports that there is a log
                one.sync()
        return shards, journals

    def _gate(self, config: ClusterConfig) -> DurableAck | None:
        """Return the queue of replies that wait for the disk, if the configuration promises durability."""
        if config.durability != "disk" or self._log is None:
            return None
        self._sync = SyncThread(self._log, self._synced, self._fail)
        return DurableAck(self._log.logs, self._sync.ask)

    def _synced(self) -> None:
        with self._lock:
            if self._session.gate is not None:
                self._session.gate.look()
            self._send_and_wake()

    @property
    def address(self) -> str:
        """Address for clients."""
        return self._link.address

    def stop(self) -> None:
        """Stop soon, without an order of the coordinator; any thread may call it."""
        self._stopped = True
        self._link.wake()

    def run(self) -> int:
        """Serve until the coordinator orders to leave; return the exit code (0 in order, 69: it has failed).

        Heartbeats end with it in any case: a server that does not serve must count as lost.
        """
        try:
            with preemption.finishing(), health.loop("server") as turned:
                while self._member.order == "go" and not self._stopped:
                    if preemption.asked and self._leaves_now():
                        break
                    self._turn()
                    self._check()
                    turned()
                self._turn(0.0)  # answers what has arrived
                for thread in self._threads:
                    thread.finish()
                if self._sync is not None:
                    self._sync.close()
                self._turn(0.0)
                self._member.leave()
        finally:
            for thread in self._threads:
                thread.finish()
            self._close()
        if preemption.asked and (
            self._member.order == "go" or self._member.reason
        ):  # its units are still here
            return PreemptedError.exit_code
        return 69 if self._member.order == "fail" else 0

    def _leaves_now(self) -> bool:
        """Return True if a server asked to leave keeps its units, or has no time left to move them to others.

        The coordinator learns of the request with the next heartbeat; it answers when no unit is here any
        more, or that no server could take them.
        """
        return self._returns or preemption.left_s < LEAVE_S

    def _check(self) -> None:
        """Raise the error that ended a shard thread, or the endpoint, without which no heartbeat is sent."""
        if failure := self._failure or self._endpoint.error:
            raise failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._link.wake()

    def _turn(self, patience_s: float = TURN_S) -> None:
        """Serve short requests, and pass the others to the shard threads, which answer them."""
        if len(self._threads) == 1:
            self._threads[0].drain(TICK_S)
        came = self._receive(patience_s)
        began_s = self._clock.now_s() if came else 0.0
        answered = 0
        for peer, frames in came:
            with self._lock:
                request = self._session.receive(peer, frames)
            if request:
                request.arrived_s = began_s
                answered += self._serve(request)
        now_s = self._clock.now_s()
        if not came and now_s < self._tick_s:
            return
        if came:
            self._busy_s += now_s - began_s
        with self._lock:
            if answered:  # these answers leave together, below
                self._session.durations.add(now_s - began_s, answered)
            if now_s >= self._tick_s:
                self._session.tick(now_s)
                self._tick_s = now_s + TICK_S
            self._send_all()

    def _receive(self, patience_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Wait for a message; return arrived messages."""
        with self._lock:
            came = self._link.receive()
        if came:
            return came
        self._link.wait(patience_s)
        with self._lock:
            return self._link.receive()

    def _serve(self, request: ShardRequest) -> bool:
        """Serve a request at once if it is short and its shards are idle, else queue it.

        Return whether it is answered.
        """
        answered = False
        short = request.is_short(SHORT_ROWS)
        for index in request.shards:
            outcome = self._threads[index].serve_now(request) if short else None
            if outcome is None:
                self._threads[index].put(request)
            else:
                with self._lock:
                    answered |= self._session.complete(request, index, outcome[0])
        return answered

    def _done(self, request: ShardRequest, shard_index: int, result: Any) -> None:
        """Record a shard thread's result; the last one sends the reply, without waking another thread."""
        now_s = self._clock.now_s()
        with self._lock:
            if self._session.complete(request, shard_index, result) and request.arrived_s:
                self._session.durations.add(now_s - request.arrived_s)
            self._send_and_wake()

    def _send_and_wake(self) -> None:
        """Send all replies from a thread other than the receive thread."""
        self._send_all()
        if self._link.ready():  # sending may have consumed the signal of a message that `wait` then misses
            self._link.wake()

    def _send_all(self) -> None:
        """Send all replies; none while a replacement of this server may exist, which lacks these changes."""
        if self._may_be_followed and self._member.may_be_replaced:
            return
        if self._session.outbox:
            replies, self._session.outbox = self._session.outbox, []
            self._link.send_all(replies)

    def _progress(self) -> dict[str, Any]:
        """Return the counters of a heartbeat; also finish the streams that are over."""
        below, queues = self._member.streams_done_below, self._queues()
        if preemption.asked and not self._returns:
            queues["leaving"] = True
        for thread in self._threads:
            if below > self._streams_done_below:
                thread.put(lambda shard: shard.finish_streams(below))
            thread.put(thread.refresh_stats)
        self._streams_done_below = max(below, self._streams_done_below)
        return merge_results([thread.stats for thread in self._threads]) | queues | self._work()

    def _work(self) -> dict[str, Any]:
        """Return the counters of requests."""
        with self._lock:
            session, durations = self._session, self._session.durations
            counters = {
                "requests": session.requests,
                "pulls": session.pulls,
                "pushes": session.pushes,
                "request_counts": list(durations.counts),
                "request_s": durations.sum_s,
            }
            counts = session.hot.counts()
        if (share := hot_share(counts)) is not None:
            counters["hot_share"] = share
        busy_s = self._busy_s + sum(thread.busy_s for thread in self._threads)
        return counters | {"busy_s": busy_s, "rss_bytes": resident_bytes()}

    def _queues(self) -> dict[str, Any]:
        """Return the waiting requests and what they wait for, for `pslib doctor`."""
        with self._lock:
            credit = self._session.credit.summary()
        steps = [one for thread in self._threads for one in thread.step_waits]
        free = self._log.free_bytes if self._log else None
        disk = {} if free is None else {"log_free_bytes": free}
        return (
            credit
            | disk
            | {
                "jobs_waiting": [thread.waiting for thread in self._threads],
                "held_pushes": sum(thread.held for thread in self._threads),
                "step_waits": steps[:1],
            }
        )

    def _rejoin(self, begins: Mapping[str, Any], shards: list[Shard]) -> Rejoin:
        """Create the rejoin of the remaining state, run in the shards' threads."""
        return Rejoin(
            begins,
            int(begins.get("generation", self._member.rank_request.generation)),  # of an older coordinator
            shards,
            lambda shard, message: self._threads[shard.index].load(shard, message),
            lambda index, work: self._threads[index].put(work),
        )

    def _begin_hands(self) -> None:
        """Start handing over units, unless they are not restored yet: every heartbeat repeats the order."""
        rejoin = self._session.rejoin
        if self._hands is not None and not (rejoin and rejoin.waits):
            self._hands.begin()

    def _moves_over(self, map_version: int) -> None:
        """Handle a published map: the moves up to it are complete."""
        for thread in self._threads:
            thread.put(lambda shard: shard.moves.forget_images(map_version))

    def _ask_shards(self, message: Message, taker: Callable[[Message], None]) -> None:
        """Queue a request of this server about one unit, in order with those of clients."""
        assert isinstance(message, Release | Keep)
        index = message.unit % len(self._threads)
        self._threads[index].put(ShardRequest(b"", 0, message, (index,), taker=taker))

    def _close(self) -> None:
        if self._hands is not None:
            self._hands.stop()
        self._member.stop_heartbeats()
        self._endpoint.close()
        if self._hands is not None:
            self._hands.join()
        if self._sync is not None:
            self._sync.close()  # it answers what is on the disk
        with self._lock:
            self._link.close()
        self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            with suppress(PslibError, OSError):  # the error that ended this server is reported already
                self._log.close()


def run_server(
    coordinator: str,
    cluster_id: str,
    listen: str,
    insecure_network: bool = False,
    keys: Keys | None = None,
    rank_request: RankRequest = FREE_RANK,
    log: str | None = None,
    returns: bool = False,
) -> int:
    """Run a server process over ZeroMQ; return its exit code (0 left in order, 69 the cluster failed).

    ``log`` is the folder of the cluster's logs: the log of a predecessor of the same rank is recovered.
    ``returns`` is as for `Server`.

    Raises
    ------
    ConfigurationError
        When there is a log and no rank.
    """
    clock = SystemClock()
    if log is not None and rank_request.rank == ANY_RANK:
        raise ConfigurationError(
            "--log: expected a rank beside it, got none; a log belongs to one rank: --rank R"
        )
    least = 0 if rank_request.generation == NEXT_GENERATION else rank_request.generation
    own = None if log is None else ServerLog(log, rank_request.rank, cluster_id, clock, least)
    transport = ZmqTransport(io_threads=IO_THREADS, insecure_network=insecure_network, keys=keys)
    try:
        server = Server(transport, coordinator, cluster_id, listen, clock, rank_request, own, returns)
        return server.run()
    finally:
        transport.close()
