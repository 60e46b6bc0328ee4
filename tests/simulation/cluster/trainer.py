"""A trainer's process: leases from the coordinator, pushes by name, pulls that check what they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pslib.client.calls import PushName
from pslib.client.failover import Failover
from pslib.client.membership import Joined, RankRequest
from pslib.client.session import ClientSession
from pslib.config import ANY_RANK
from pslib.coordinator.checkpoint_barrier import moment_of_cut
from pslib.errors import MemoryLimitError, PslibError
from pslib.table.partition_map import PartitionMap
from pslib.wire.dense_delta import KnownDense
from pslib.wire.fields import Message, json_array
from pslib.wire.messages import NOWHERE, CutReady, CutStep, Done, EndLease, Lease, NextLease, OpenJob, Stats
from tests.simulation.cluster.members import COORDINATOR, Member
from tests.simulation.cluster.workload import DENSE_BLOCKS, DENSE_LENGTH, DIMS, SETUP, Op, Script, packed

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["Held", "Trainer"]

IN_FLIGHT_MAX, HELD_MAX = 3, 2


@dataclass(slots=True)
class Held:
    """A lease, or a stream of the trainer's own, that it works on."""

    script: Script
    next: int
    epoch: int = 0
    ending: bool = False


class Trainer(Member):
    """Opens job after job, and works on leases until each is done."""

    role = "trainer"

    def __init__(
        self, world: World, name: str, own: Script | None, generation: int = 1, rank: int = ANY_RANK
    ) -> None:
        self.rank = rank
        super().__init__(world, name, generation)
        choice = world.random
        self.session: ClientSession | None = None
        self.leaves_behind = 0
        """Calls that were not acknowledged when it left."""
        self.job = int(world.lives.resume.get("job", 0))
        self.working = False
        self._asking = self.draining = False
        self._held: dict[int, Held] = {}
        if own:
            self._held[own.stream] = Held(own, 0)
        self._calls: dict[Op, None] = {}
        self._cuts = Cuts(self)
        self.member.on_cut = lambda cut: self._surely(partial(self._cuts.heard, cut))
        self._pulling = 0
        self._pause_s = choice.choice([0.1, 0.2, 0.8])
        self._pulls_left = choice.randint(1, 3)
        self._rows_as = choice.choice(["float32", "bfloat16", "float16"])
        self._gradients_as = choice.choice(["float32", "bfloat16", "float16"])
        self._known: KnownDense | None = None
        if choice.random() < 0.7:
            self._known = KnownDense(np.empty(0, np.float32), np.zeros(DENSE_BLOCKS, np.uint64))

    def _rank_request(self) -> RankRequest:
        return RankRequest(self.rank, self.generation)

    # --- membership ---------------------------------------------------------------------------------------

    def joined(self, joined: Joined) -> None:
        if self.world.credit_bytes:
            shares = self.endpoint.requests.shares
            shares.share_bytes, shares.small_bytes = self.world.credit_bytes // 2 // 3, 0
        self.session = ClientSession(self.endpoint.requests, joined.map, DIMS, DENSE_LENGTH)
        self.endpoint.session = self.session
        self.rank = joined.rank
        if joined.config.recovery == "partial":  # as every client does before it begins
            for address in filter(None, joined.map.addresses):
                self.ask(address, SETUP, _nothing, None, _nothing)
        self._open()
        self._turn()

    def progress(self) -> dict[str, Any]:
        assert self.session is not None
        return {"streams": [[stream, batch] for stream, batch in self.positions().items()]}

    def positions(self) -> dict[int, int]:
        """Return, for each lease that it holds, the batch below which all is acknowledged."""
        assert self.session is not None
        return {stream: self.session.acked_below(stream) for stream in self._held if stream < 1 << 63}

    @property
    def is_quiet(self) -> bool:
        """True if nothing of a lease is on its way."""
        ending = any(held.ending for held in self._held.values())
        return not ending and all(op.stream >= 1 << 63 for op in self._calls)

    def new_map(self, new_map: PartitionMap) -> None:
        assert self.session is not None
        failover = Failover(self.endpoint, self.member, self.world.config)
        failover.setup = SETUP if self.world.config.recovery == "partial" else None
        failover.meet(self.session.map, new_map)
        self.session.set_map(self.endpoint.clock.now_s(), new_map)

    # --- jobs and leases ----------------------------------------------------------------------------------

    def _open(self) -> None:
        windows = self.world.windows[self.job]
        about = (self.rank, self.job, "fit", 7, self.world.details, windows)
        table = self.world.lives.resume
        goes_on = bool(table) and self.job == table["job"]
        message = OpenJob(*about, resume=json_array(table)) if goes_on else OpenJob(*about)
        self.ask(COORDINATOR, message, self._opened)

    def _opened(self, _answer: Done) -> None:
        self.working = True

    def _ask_lease(self) -> None:
        self._asking = True
        mine = [stream for stream in self._held if stream < 1 << 63]
        message = NextLease(self.rank, self.member.incarnation, self.job, np.array(mine, np.uint64))
        self.ask(COORDINATOR, message, self._lease)

    def _lease(self, lease: Lease) -> None:
        if lease.state == "wait":
            self.after(self.world.random.uniform(0.05, 0.4), self._may_ask)
            return
        self._asking = False
        if lease.state == "done":
            self._job_done()
            return
        assert self.session is not None
        script = self.world.scripts[lease.stream]
        self._held[lease.stream] = Held(script, lease.first_batch, lease.epoch)
        self.session.open_stream(lease.stream, lease.first_batch)

    def _may_ask(self) -> None:
        self._asking = False

    def _job_done(self) -> None:
        self.working = False
        self.job += 1
        if self.job < len(self.world.windows):
            self._open()

    def _end_lease(self, held: Held) -> None:
        held.ending = True
        stream = held.script.stream
        message = EndLease(self.rank, self.member.incarnation, self.job, stream, held.epoch, {})
        self.ask(COORDINATOR, message, partial(self._lease_over, stream))

    def _lease_over(self, stream: int, _answer: Done) -> None:
        assert self.session is not None
        del self._held[stream]
        self.session.close_stream(stream)
        self._cuts.look()

    def drain(self, patience_s: float | None = None) -> None:
        """SIGTERM: begin nothing new, wait until all is acknowledged or time is over, and go."""
        self.network.tell(f"{self} is asked to go")
        self.draining = True
        if patience_s is not None:
            self.after(patience_s, self._time_is_over)
        if self.session is None:
            self.end("has not joined yet")

    def _time_is_over(self) -> None:
        """Leave with unacknowledged calls: the next holder of its leases sends them again."""
        if not self.leaving:
            self.leaves_behind = len(self._calls)
            self.leave(preempted=True)

    # --- calls --------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True if it has nothing to do and waits for nothing."""
        return self.job == len(self.world.windows) and not (self._held or self._calls or self._pulling)

    @property
    def _may_go(self) -> bool:
        """True if nothing that it has begun is on its way."""
        return not self._calls and self.member.reported

    def _turn(self) -> None:
        if self.leaving:
            return
        if self.draining and self._may_go:
            self.leave(preempted=True)
            return
        if self.done and self.member.reported and self.world.admin.done:
            self.leave()
            return
        if not self.draining and len(self._calls) + self._pulling < IN_FLIGHT_MAX:
            self._begin()
        self.after(self.world.random.uniform(0.005, self._pause_s), self._turn)

    def _begin(self) -> None:
        choice = self.world.random
        leases = sum(stream < 1 << 63 for stream in self._held)
        if self.working and not self._asking and leases < HELD_MAX:
            self._ask_lease()
        if self._pulls_left and choice.random() < 0.3:
            self._pulls_left -= 1
            self._pull()
        elif self._held:
            self._work_on(self._held[choice.choice(list(self._held))])

    def _work_on(self, held: Held) -> None:
        assert self.session is not None
        stream, ops = held.script.stream, held.script.ops
        if self._cuts.closed and stream < 1 << 63:
            return
        if held.next < len(ops):
            op = ops[held.next]
            if op.after is None or all((one.stream, one.number) != (stream, op.after) for one in self._calls):
                held.next += 1
                self._start(op, held.epoch)
        elif self.session.acked_below(stream) == len(ops) and not held.ending:
            if stream < 1 << 63:
                self._end_lease(held)
            else:
                del self._held[stream]

    def _start(self, op: Op, epoch: int) -> None:
        name = PushName(op.stream, op.number, epoch)
        self.world.history.started(op)
        self._calls[op] = None

        def begin(session: ClientSession, now_s: float) -> int:
            if op.erases:
                return session.erase(now_s, name, {t: pair[0] for t, pair in op.rows.items()})
            return session.push(now_s, name, *packed(op, self._gradients_as))

        self._call(begin, partial(self._applied, op), partial(self._not_applied, op, epoch))

    def _call(
        self,
        begin: Callable[[ClientSession, float], int],
        then: Callable[[int], None],
        otherwise: Callable[[PslibError], None] | None = None,
    ) -> None:
        try:
            _number, pending = self.endpoint.call("a call", begin)
        except PslibError as error:
            self.failed(error)
            return
        pending.on_done(partial(self._over, pending, then, otherwise or self.failed))

    def _not_applied(self, op: Op, epoch: int, error: PslibError) -> None:
        """A push for which a server had no room is sent again under its name."""
        if not isinstance(error, MemoryLimitError):
            self.failed(error)
            return
        self.after(0.05, partial(self._start, op, epoch))

    def _applied(self, op: Op, _number: int) -> None:
        del self._calls[op]
        self.world.checks.acknowledged(op)
        self._cuts.look()

    def _pull(self) -> None:
        keys, check = self.world.history.expectation(self.world.random)
        dense_as = "float32" if self._rows_as == "float32" else "float16"  # exact up to 2048
        self._pulling += 1

        def begin(session: ClientSession, now_s: float) -> int:
            return session.pull(
                now_s, keys, dense=True, rows_as=self._rows_as, dense_as=dense_as, known=self._known
            )

        def pulled(number: int) -> None:
            assert self.session is not None
            self._pulling -= 1
            result = self.session.pulled(number)
            check(result)
            if self._known:
                assert result.versions is not None
                self._known = KnownDense(result.dense, result.versions)

        self._call(begin, pulled)


class Cuts:
    """The threads of `pslib.trainer.checkpoints.online` and `CheckpointPause`, in events; servers write no
    files here."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.closed = 0
        """Number of the cut for which nothing begins; 0: none."""
        self._told = self._led = 0

    def heard(self, cut: Mapping[str, Any]) -> None:
        """Take in a heartbeat's answer; empty: no cut is under way."""
        number, phase = int(cut.get("number", 0)), cut.get("phase", "")
        self.closed = number if phase in ("pause", "begin") else 0
        self.look()
        if phase == "begin" and cut["leader"] == self._trainer.rank and self._led != number:
            self._led = number
            self._begin(number)

    def look(self) -> None:
        """Say that all is quiet, once it is."""
        trainer, number = self._trainer, self.closed
        if not number or self._told == number or not trainer.is_quiet:
            return
        self._told = number
        assert trainer.session is not None
        trainer.session.acknowledged.pause(moment_of_cut(number))
        positions = trainer.positions()
        message = CutReady(
            trainer.rank,
            trainer.member.incarnation,
            number,
            NOWHERE,
            True,
            np.array(list(positions), np.uint64),
            np.array(list(positions.values()), np.uint64),
        )
        trainer.ask(COORDINATOR, message, _nothing, None, _nothing)

    def _begin(self, number: int) -> None:
        """All servers are asked; when they have answered, the coordinator hears it."""
        trainer = self._trainer
        assert trainer.session is not None
        waiting = set(filter(None, trainer.session.map.addresses))

        def answered(address: str, _answer: Message) -> None:
            waiting.discard(address)
            if not waiting:
                self._step(number, "begun", partial(self._begun, number))

        for address in sorted(waiting):
            trainer.ask(address, Stats(), partial(answered, address), 3.0, _nothing)

    def _begun(self, number: int, answer: Message) -> None:
        trainer = self._trainer
        if problem := trainer.world.checkpoints.problem(number):
            self._step(number, "failed", _nothing, problem)
            return
        self.closed = 0 if self.closed == number else self.closed
        done = partial(self._step, number, "commit", lambda _answer: self._step(number, "saved", _nothing))
        trainer.after(trainer.world.random.uniform(0.01, 0.5), done)

    def _step(self, number: int, state: str, then: Any, reason: str = "") -> None:
        trainer = self._trainer
        about = {"path": trainer.world.checkpoints.path_of(number), "name": "n", "reason": reason}
        message = CutStep(trainer.rank, trainer.member.incarnation, number, state, about)
        trainer.ask(COORDINATOR, message, then, None, _nothing)


def _nothing(_answer: Message | PslibError) -> None:
    return
