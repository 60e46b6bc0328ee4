"""Online checkpoints: the trainer's part in a cut that the coordinator announces.

Every trainer closes its `CheckpointPause`, and opens it when the servers have marked the instant; not so for
the last checkpoint of a run, after which trainers are asked to leave. One trainer, the leader, tells the
servers to do so, waits for their files in a separate thread and writes the manifest.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

from pslib.checkpoint import Manifest, ManifestFile, commit, discard, next_place, prune
from pslib.checkpoint.folders import Base, base_in
from pslib.client.client import Client
from pslib.client.load import FILE_PATIENCE_S
from pslib.client.pending import Pending
from pslib.coordinator.checkpoint_barrier import PAUSED
from pslib.errors import CheckpointError, PslibError
from pslib.process.shutdown import preemption
from pslib.trainer.checkpoints.pause import CheckpointPause
from pslib.trainer.settings import CheckpointSettings
from pslib.wire.fields import Message, plain_of
from pslib.wire.messages import BeginSave, CutStep, CutTable, EndSave, Result, SaveFiles, SaveSoon, Status

log = logging.getLogger(__name__)
LOOK_S = 0.1
END_S = 60.0
"""Time that a trainer at the end of its fit waits for the files of a cut that it leads."""

CutManifest = Callable[[str, list[ManifestFile], dict[str, Any], str, Base | None], Manifest]
"""Makes a manifest from the path, the files, the cut's table of jobs, the token and the base."""
ManifestOfNow = Callable[[], CutManifest]
"""Called while all trainers pause; the manifest, made when the files exist, has the positions of then."""


@dataclass(slots=True)
class _Led:
    """A cut that this trainer leads."""

    number: int
    place: str = ""
    base: Base | None = None
    tokens: list[str] = field(default_factory=lambda: [secrets.token_hex(4)])
    """Token that servers have begun with; the last one counts, after a server refused an increment."""
    may_begin: threading.Event = field(default_factory=threading.Event)
    last: bool = False
    over: bool = False

    @property
    def token(self) -> str:
        """Token of the checkpoint."""
        return self.tokens[-1]


class TrainerCuts:
    """Client side of cuts: follows the coordinator's announcements, for the training trainer of a client.

    Parameters
    ----------
    client : Client
    gate : CheckpointPause
    settings : CheckpointSettings or None
    manifest : callable
        Returns the function that makes a manifest.
    """

    def __init__(
        self,
        client: Client,
        gate: CheckpointPause,
        settings: CheckpointSettings | None,
        manifest: ManifestOfNow,
    ) -> None:
        self._client, self._gate, self._settings, self._manifest = client, gate, settings, manifest
        self._led: _Led | None = None
        self._thread: threading.Thread | None = None
        self._no_base = False
        self.written: deque[str] = deque()
        """Paths of checkpoints that this trainer has written and not told of yet."""
        heard = WeakMethod(self.on_cut)  # the member's thread would keep this trainer and its cluster

        def hear(cut: Mapping[str, Any]) -> None:
            if (on_cut := heard()) is not None:
                on_cut(cut)

        self._hear = hear
        if client.member.on_cut is None:  # else the first one may be training
            client.member.on_cut = hear

    def follow(self) -> None:
        """Follow cuts from now on, in place of this client's trainer that did so before."""
        member = self._client.member
        before = member.on_cut
        if before is self._hear:
            return
        member.on_cut = self._hear
        if before is not None:
            before({})  # it gets no more news of a cut for which it has paused, or which it leads

    # --- in the endpoint's thread -------------------------------------------------------------------------

    def on_cut(self, cut: Mapping[str, Any]) -> None:
        """Handle the cut part of a heartbeat reply; empty: no cut is under way."""
        number, phase = int(cut.get("number", 0)), str(cut.get("phase", ""))
        leads = bool(number) and int(cut["leader"]) == self._client.rank
        # A cut in a later phase is led by the trainer that led it before, if by any: see `follow`.
        if leads and phase in ("near", "pause") and (self._led is None or self._led.number != number):
            self._lead(number)
        if self._led is not None and self._led.number != number:
            self._give_up(self._led)
        if phase in PAUSED:
            preparing = leads and self._led is not None and not self._led.place
            self._gate.close(number, int(cut.get("step", -1)), preparing)
        else:
            self._gate.open()
        if phase == "begin" and leads and self._led is not None:
            self._led.last = bool(cut.get("last"))
            self._led.may_begin.set()

    def finish(self) -> None:
        """Wait for the files of a cut that this trainer leads."""
        if self._thread is not None:
            self._thread.join(END_S)

    def save_as_it_is(self) -> bool:
        """Request a cut while this trainer is in the call; return whether it is made within `Timing.drain_s`.

        It keeps its leases meanwhile, so that the call can't be over for the others.
        """
        asked = soon = False
        clock, limit_s = self._client.endpoint.clock, self._client.joined.config.timing.drain_s
        until_s = clock.now_s() + limit_s
        with preemption.finishing():
            try:
                answer = self._client.ask_coordinator(SaveSoon())
                asked = soon = isinstance(answer, Result) and bool(answer.values["asked"])
                while soon and clock.now_s() < until_s and not preemption.asked:
                    clock.sleep_s(LOOK_S)
                    status = self._client.ask_coordinator(Status())
                    soon = isinstance(status, Result) and bool(status.values["saves_soon"])
            except PslibError as error:  # logged: the reason, and that nothing was saved
                log.info("pslib: not saved: %s", error)
                return False
        return asked and not soon

    def _lead(self, number: int) -> None:
        led = self._led = _Led(number)
        thread = threading.Thread(target=self._run, args=(led,), name="pslib-cut", daemon=True)
        thread.start()
        self._thread = thread  # only now: `finish` may read it at any moment

    def _give_up(self, led: _Led) -> None:
        led.over = True
        led.may_begin.set()
        self._led = None

    # --- in the leader's thread ---------------------------------------------------------------------------

    def _run(self, led: _Led) -> None:
        try:
            self._prepare(led)
            while not led.may_begin.wait(LOOK_S):
                if self._client.endpoint.error:  # this trainer leaves
                    return
            if not led.over:
                self._make(led)
        except PslibError as error:
            log.warning("pslib: cut %d: %s", led.number, error)
            self._end_images(led, committed=False)
            self._discard(led)
            self._say(led, "failed", {"reason": str(error)})
        except Exception as error:  # it would be lost in this thread
            log.exception("pslib: cut %d", led.number)
            self._say(led, "failed", {"reason": f"internal: {type(error).__name__}: {error}"})

    def _prepare(self, led: _Led) -> None:
        """Do slow look-ups before any trainer pauses."""
        if self._settings is None:  # requested by another trainer's fit, which has failed
            raise CheckpointError("the trainer that trains now has no checkpoint settings")
        if self._settings.incremental and not self._no_base:
            led.base = base_in(self._settings.path, self._settings.incremental)
        led.place = next_place(self._settings.path)
        self._gate.let_tell()

    def _make(self, led: _Led) -> None:
        assert self._settings is not None
        started_s = time.perf_counter()
        self._begin(led)
        begun, manifest_of = self._step(led, "begun", {}), self._manifest()
        if not led.last:
            self._gate.open()
        assert isinstance(begun, CutTable)
        files = [ManifestFile(**entry) for entry in self._files(led)]
        self._step(led, "commit", {})
        commit(led.place, manifest_of(led.place, files, plain_of(begun.table), led.token, led.base))
        self._end_images(led, committed=True)
        self._no_base = False
        details = {
            "path": led.place,
            "name": led.token,
            "bytes": sum(entry.bytes for entry in files),
            "increment": led.base is not None,
            "seconds": time.perf_counter() - started_s,
        }
        self._step(led, "saved", details)
        # Only now: until it knows of this checkpoint, the coordinator names the one before as the start.
        prune(self._settings.path, self._settings.keep_last)
        self.written.append(led.place)

    def _begin(self, led: _Led) -> None:
        """Mark the instant on all servers; if one can't make an increment, all save everything."""
        try:
            self._begin_all(led)
        except CheckpointError:
            if led.base is None:
                raise
            led.base = None
            led.tokens.append(secrets.token_hex(4))
            self._begin_all(led)

    def _begin_all(self, led: _Led) -> None:
        assert self._settings is not None
        base, keep = led.base.token if led.base else "", bool(self._settings.incremental)
        self._ask_all(led, lambda stem: BeginSave(led.place, stem, base, keep))

    def _files(self, led: _Led) -> list[dict[str, Any]]:
        answers = self._ask_all(led, SaveFiles, FILE_PATIENCE_S)
        return [entry for answer in answers if isinstance(answer, Result) for entry in answer.values["files"]]

    def _end_images(self, led: _Led, committed: bool) -> None:
        try:
            self._ask_all(led, lambda stem: EndSave(stem, led.token, committed))
        except PslibError as error:  # the next checkpoint is then a full one
            log.info("pslib: cut %d: %s", led.number, error)
            self._no_base = True

    @staticmethod
    def _discard(led: _Led) -> None:
        """Remove the files of a failed checkpoint: without their space the next one would fail, too."""
        for token in led.tokens if led.place else ():
            discard(led.place, token)

    def _ask_all(
        self, led: _Led, make: Callable[[str], Message], patience_s: float | None = None
    ) -> list[Message]:
        pending: list[Pending[Message]] = [
            self._client.endpoint.ask(address, make(f"{led.token}-{rank:03d}"), patience_s)
            for rank, address in enumerate(self._client.servers)
            if address
        ]
        return [one.wait() for one in pending]

    def _step(self, led: _Led, state: str, details: dict[str, Any]) -> Message:
        client = self._client
        message = CutStep(client.rank, client.member.incarnation, led.number, state, details)
        return client.ask_coordinator(message)

    def _say(self, led: _Led, state: str, details: dict[str, Any]) -> None:
        try:
            self._step(led, state, details)
        except PslibError as error:
            log.info("pslib: cut %d: %s", led.number, error)
