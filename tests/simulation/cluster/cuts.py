"""A trainer's part in a cut: it stops at a batch boundary, says how far it is, and may lead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pslib.coordinator.checkpoint_barrier import moment_of_cut
from pslib.errors import PslibError
from pslib.wire.messages import NOWHERE, CutReady, CutStep, Message, Stats
from tests.simulation.cluster.members import COORDINATOR

if TYPE_CHECKING:
    from tests.simulation.cluster.trainer import Trainer

__all__ = ["Cuts"]


class Cuts:
    """What `pslib.trainer.checkpoints.online` and `CheckpointPause` do in threads, in events; servers write
    no files here."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.closed = 0
        """Number of the cut for which nothing begins; 0: none."""
        self._told = self._led = 0

    def heard(self, cut: Mapping[str, Any]) -> None:
        """What a heartbeat's answer says; nothing: no cut is under way."""
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
