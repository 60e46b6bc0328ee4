"""A server: one receiving thread and K shard threads, each of which owns its partitions alone."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from pslib.clock import Clock, SystemClock
from pslib.config import Timing
from pslib.endpoint import Endpoint
from pslib.errors import CheckpointError, PreemptedError
from pslib.hand_over import HandOver
from pslib.image_turns import ImageThread, ImageTurns
from pslib.member import ANYWHERE, MemberHandle, Place, join
from pslib.preemption import preemption
from pslib.protocol.codec import Codec
from pslib.protocol.credit import CreditPool
from pslib.protocol.messages import Keep, Load, Message, Release
from pslib.protocol.server_session import ServerSession, merge_results
from pslib.protocol.shard_jobs import Job, ShardTurns, Work, run_on_shard, saves_over, shard_stats
from pslib.shard import Shard
from pslib.transport import Keys, ServerLink, Transport, ZmqTransport

__all__ = ["Server", "run_server"]

log = logging.getLogger("pslib")
TURN_S = 0.1
IMAGE_REST_S = 0.002
"""Until a shard thread with nothing else to do looks again whether files have taken what it gave them."""
IO_THREADS = 2
"""One alone would let a short request wait while it copies a long one from another connection."""


FILE_WORKS_KEPT = 8
"""Outcomes of saves and loads that are remembered; a client has one at a time on its way."""


class _FileWork:
    """Loads one shard, each load once.

    It takes longer than the pause after which a request is sent again. A second copy that was done too would
    throw away what has been trained since; so it gets the first one's answer.
    """

    def __init__(self) -> None:
        self._done: dict[Load, dict[str, Any] | CheckpointError] = {}

    def __call__(self, shard: Shard, message: Message) -> dict[str, Any]:
        assert isinstance(message, Load)
        if message not in self._done:
            if len(self._done) == FILE_WORKS_KEPT:
                del self._done[next(iter(self._done))]
            self._done[message] = self._do(shard, message)
        outcome = self._done[message]
        if isinstance(outcome, CheckpointError):
            raise outcome
        return outcome

    @staticmethod
    def _do(shard: Shard, message: Load) -> dict[str, Any] | CheckpointError:
        from pslib.checkpoint import LoadOptions, load_shard  # pyarrow: 40 MB for files alone

        try:
            names = tuple(message.tables.split(",")) if message.tables else None
            return load_shard(
                shard, message.path, LoadOptions(message.state, names, message.step, message.time_s)
            )
        except CheckpointError as error:
            return error


SHORT_ROWS = 1024
"""Rows (or 16 dense parameters each) that the receiving thread serves itself: some 50 us, less than it takes
to hand them to another thread and their answer back."""


class _ShardThread:
    """Does jobs on one shard, in the order of `ShardTurns`; ``failed`` hears of it if it can't go on.

    While it has no job, the receiving thread does short ones itself (`serve_now`): two hand-overs between
    threads cost more than a few rows. Whoever touches the shard holds ``_turn``.
    """

    def __init__(
        self,
        shard: Shard,
        done: Callable[[Job, int, Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.shard = shard
        self.stats = shard_stats(shard)
        self.held, self.step_waits = 0, list[list[Any]]()
        """Pushes of a sync step that wait, and for whom, ``[step, ranks]``; as of the last heartbeat."""
        self._done, self._failed = done, failed
        self._files = _FileWork()
        self._turns = ShardTurns(shard, self._files)
        shard.cuts.opener = ImageThread
        self._image = ImageTurns(shard)
        self._turn = threading.Lock()
        self._counting = threading.Lock()
        self._given = self._taken = 0  # pieces of work, in and out of the queue
        self._work: SimpleQueue[Job | Work | None] = SimpleQueue()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"pslib-shard-{shard.index}", daemon=True)
        self._thread.start()

    def put(self, work: Job | Work) -> None:
        """Queue some work."""
        with self._counting:
            self._given += 1
        self._work.put(work)

    def serve_now(self, job: Job) -> tuple[Any] | None:
        """The outcome of a job, when nothing else waits or is on its way; None: it has not been touched."""
        if self._given != self._taken or not self._turn.acquire(blocking=False):
            return None
        try:
            return None if self._turns else (run_on_shard(self.shard, job, self._files),)
        finally:
            self._turn.release()

    def finish(self) -> None:
        """Do what waits, then end the thread."""
        self._work.put(None)
        self._thread.join()
        self.stats = shard_stats(self.shard)

    def _run(self) -> None:
        try:
            while self._take():
                with self._turn:
                    over = self._turns.turn()
                for job, result in over:
                    self._done(job, self.shard.index, result)
                if self.shard.cuts.active and self._image.due:
                    self._write_image()
            self.shard.cuts.give_up("the server leaves")
        except BaseException as error:  # nobody would answer requests for these partitions any more
            self._failed(error)

    def _take(self) -> bool:
        """Take in what has come, and wait for it only when nothing is left to do; False at the end."""
        while not (self._turns and (self._ending or self._work.empty())):
            if self._ending:
                return False
            work = self._next_work()
            if work is None:
                self._ending = True
            else:
                self._turns.put(work)
                self._taken += 1
        return True

    def _next_work(self) -> Job | Work | None:
        """The next piece of work; while there is none, an image is written."""
        while self.shard.cuts.active:
            try:
                return self._work.get_nowait()
            except Empty:
                if not self._write_image():
                    with suppress(Empty):
                        return self._work.get(timeout=IMAGE_REST_S)
        return self._work.get()

    def _write_image(self) -> bool:
        """A piece of it; whether there was any to write."""
        with self._turn:
            moved = self._image.step()
            over = saves_over(self.shard)
        for job, result in over:
            self._done(job, self.shard.index, result)
        return moved

    def refresh_stats(self, _shard: Shard) -> None:
        """Counters for the next heartbeat, read in the thread that owns them."""
        self.stats = shard_stats(self.shard)
        self.held, self.step_waits = self.shard.sync.held, self.shard.sync.missing()

    @property
    def waiting(self) -> int:
        """Pieces of work that are not done; nearly exact, read without a lock."""
        return self._given - self._taken + len(self._turns)


class Server:
    """One server of a cluster.

    Parameters
    ----------
    transport : Transport
        Where to listen and how to reach the coordinator.
    coordinator, cluster_id : str
        The cluster to join.
    listen : str
        Address; port 0 means any free one.
    clock : Clock
        Time.
    place : Place
        Rank to take, and generation.

    Raises
    ------
    ConfigurationError
        When the address is taken, or the cluster has no place for another server.
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
        place: Place = ANYWHERE,
    ) -> None:
        timing = Timing()  # until the coordinator says which
        self._link: ServerLink = transport.listen(listen)
        codec = Codec(cluster_id)
        self._endpoint = Endpoint(transport.connect(), codec, timing, clock, secrets.randbits(63))
        self._member = MemberHandle(self._endpoint, coordinator, "server", self._link.address, place)
        self._lock = threading.Lock()
        """For the link and the session: the receiving thread asks, shard threads answer."""
        self._streams_done_below = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._hands: HandOver | None = None
        try:
            joined = join(self._member, clock, timing.start_s)
        except BaseException:
            self._close()
            raise
        config = joined.config
        self._has_log = config.durability != "memory"
        self._endpoint.use_timing(config.timing)
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
        for shard in shards:
            shard.own(joined.map.units_of(joined.rank))
        self.rank = joined.rank
        self._clock = clock
        credit = CreditPool(config.grant_bytes, config.asking.request_s)
        self._session = ServerSession(codec, shards, credit)
        self._threads = [_ShardThread(shard, self._done, self._fail) for shard in shards]
        self._member.progress = self._progress
        self._member.on_order = self._link.wake
        self._member.on_map = lambda new_map: self._moves_over(new_map.version)
        self._hands = HandOver(
            self._endpoint,
            self._member,
            clock,
            self._ask_shards,
            shards[0].setup_message,
            self._moves_over,
        )
        self._member.on_hand = self._hands.begin
        self._member.start_heartbeats(joined)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self._link.address

    def stop(self) -> None:
        """Leave soon, without waiting for the coordinator to say so; any thread may call it."""
        self._stopped = True
        self._link.wake()

    def run(self) -> int:
        """Serve until the coordinator says to leave; return the exit code (0 in order, 69: it has failed).

        However it ends, its heartbeats end with it: a server that does not serve must count as lost.
        """
        try:
            with preemption.finishing():
                while self._member.order == "go" and not (self._stopped or preemption.asked):
                    self._turn()
                    self._check()
                self._turn(0.0)  # what has come is answered
                for thread in self._threads:
                    thread.finish()
                self._turn(0.0)
                self._member.leave()
        finally:
            for thread in self._threads:
                thread.finish()
            self._close()
        if preemption.asked and self._member.order == "go":
            return PreemptedError.exit_code
        return 69 if self._member.order == "fail" else 0

    def _check(self) -> None:
        """Raise what has ended a shard thread, or the endpoint without which no heartbeat goes out."""
        if failure := self._failure or self._endpoint.error:
            raise failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._link.wake()

    def _turn(self, patience_s: float = TURN_S) -> None:
        """Serve what is short, and hand the rest to the shard threads, which answer it themselves."""
        with self._lock:
            came = self._link.receive()
        if not came:
            self._link.wait(patience_s)
            with self._lock:
                came = self._link.receive()
        for peer, frames in came:
            with self._lock:
                job = self._session.receive(peer, frames)
            if job:
                self._serve(job)
        with self._lock:
            self._session.tick(self._clock.now_s())
            self._send_all()

    def _serve(self, job: Job) -> None:
        """Do a job at once if it is short and its shards are idle; else their threads do it."""
        short = job.is_short(SHORT_ROWS)
        for index in job.shards:
            outcome = self._threads[index].serve_now(job) if short else None
            if outcome is None:
                self._threads[index].put(job)
            else:
                with self._lock:
                    self._session.complete(job, index, outcome[0])

    def _done(self, job: Job, shard_index: int, result: Any) -> None:
        """A shard thread is done with a job; the last one sends the answer: nobody has to be woken for it."""
        with self._lock:
            self._session.complete(job, shard_index, result)
            self._send_all()
            if self._link.ready():  # sending may have taken notice of a message for which `wait` then sleeps
                self._link.wake()

    def _send_all(self) -> None:
        """Send all answers; none while another may have our place, who does not know what we call done."""
        if self._has_log and self._member.may_be_replaced:
            return
        replies, self._session.outbox = self._session.outbox, []
        for reply in replies:
            self._link.send(reply.peer, reply.frames)

    def _progress(self) -> dict[str, Any]:
        """Counters for the heartbeat; also passes on which streams are over."""
        below, queues = self._member.streams_done_below, self._queues()
        for thread in self._threads:
            if below > self._streams_done_below:
                thread.put(lambda shard: shard.marks.finish_below(below))
            thread.put(thread.refresh_stats)
        self._streams_done_below = max(below, self._streams_done_below)
        return merge_results([thread.stats for thread in self._threads]) | queues

    def _queues(self) -> dict[str, Any]:
        """What waits here and for whom, for `pslib doctor`."""
        with self._lock:
            credit = self._session.credit.summary()
        steps = [one for thread in self._threads for one in thread.step_waits]
        return credit | {
            "jobs_waiting": [thread.waiting for thread in self._threads],
            "held_pushes": sum(thread.held for thread in self._threads),
            "step_waits": steps[:1],
        }

    def _moves_over(self, map_version: int) -> None:
        """A published map says that the moves up to it are complete."""
        for thread in self._threads:
            thread.put(lambda shard: shard.forget_images(map_version))

    def _ask_shards(self, message: Message, taker: Callable[[Message], None]) -> None:
        """A request of our own about one unit, in its turn among those of others."""
        assert isinstance(message, Release | Keep)
        index = message.unit % len(self._threads)
        self._threads[index].put(Job(b"", 0, message, (index,), taker=taker))

    def _close(self) -> None:
        if self._hands is not None:
            self._hands.stop()
        self._member.stop_heartbeats()
        self._endpoint.close()
        if self._hands is not None:
            self._hands.join()
        self._link.close()


def run_server(
    coordinator: str,
    cluster_id: str,
    listen: str,
    insecure_network: bool = False,
    keys: Keys | None = None,
    place: Place = ANYWHERE,
) -> int:
    """Run a server process over ZeroMQ; return its exit code (0 left in order, 69 the cluster failed)."""
    transport = ZmqTransport(io_threads=IO_THREADS, insecure_network=insecure_network, keys=keys)
    try:
        return Server(transport, coordinator, cluster_id, listen, SystemClock(), place).run()
    finally:
        transport.close()
