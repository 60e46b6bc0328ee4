"""Runs that end as a whole and begin again: from their logs, or at the last checkpoint as another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslib.wire.messages import Load
from tests.simulation.cluster.coordinator import CoordinatorProcess
from tests.simulation.cluster.history import History
from tests.simulation.cluster.launcher import Leaving
from tests.simulation.cluster.server import Server

if TYPE_CHECKING:
    from pslib.shard.shard import Shard
    from tests.simulation.cluster.world import World

__all__ = ["Lives"]

GENERATIONS = 100
"""More than there are of one process in one life."""
ROLLED_BACK_MAX = 2


class Lives:
    """The launcher's actions on all processes of a run at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.number = 0
        self.began_s = 0.0
        self.down = False
        """True while no process is started again."""
        self.resumed = self.rolled_back = 0
        self._loads = ""
        self.resume: dict[str, Any] = {}
        """The table of jobs of a life that began at a checkpoint."""

    @property
    def abandoned(self) -> bool:
        """True if the coordinator is gone for good."""
        return not (self._world.coordinator.alive or self._world.config.coordinator_comes_back)

    # --- from logs ----------------------------------------------------------------------------------------

    def end_all(self) -> None:
        """Kill the launcher, and all processes with it; the run is soon resumed."""
        world = self._world
        if self.down or world.coordinator.session.over or world.coordinator.session.error:
            return
        self.down = True
        world.network.tell("the launcher is killed")
        self.ended()

    def ask_all_to_leave(self) -> Leaving | None:
        """Send SIGTERM to the launcher; no process is started again, and the run is resumed later."""
        world = self._world
        if self.down or world.coordinator.session.over or world.coordinator.session.error:
            return None
        if not (
            world.coordinator.alive and world.all_servers_live
        ):  # it would end as if they had been killed
            return None
        self.down = True
        world.network.tell("the launcher is asked to leave")
        return Leaving(world)

    def ended(self) -> None:
        """End all remaining processes with the launcher; the run is soon resumed."""
        world = self._world
        deposed = world.coordinator.predecessor
        for process in (*world.trainers, *world.servers, world.coordinator, deposed):
            if process is not None:
                process.end("the launcher is gone")
        world.network.after(world.random.uniform(0.1, 3.0), self._resume)

    def _resume(self) -> None:
        """Resume like `pslib train --resume`: the first number of processes, and servers by the status."""
        world = self._world
        self._next()
        self.resumed += 1
        world.coordinator = CoordinatorProcess(world, world.config, world.coordinator, resumes=True)
        asked_for = [rank for rank in world.moves.awaited_ranks() if rank >= world.config.servers]
        for rank in (*range(world.config.servers), *asked_for):
            if rank < len(world.servers):
                world.replace_server(world.servers[rank])
            else:
                world.start_server()
        self._start_trainers()

    def _next(self) -> None:
        self.number += 1
        self.down = False
        self._world.network.tell(f"life {self.number} begins")

    def _start_trainers(self) -> None:
        world, generation = self._world, self.number * GENERATIONS
        for rank in range(world.config.trainers):
            name = f"trainer-{len(world.trainers)}"
            world.trainers.append(world.planted.make_trainer(world, name, None, generation, rank))

    # --- from the last checkpoint -------------------------------------------------------------------------

    def begin_again(self) -> bool:
        """With recovery ``rollback``, where the run has failed: begin at its last checkpoint."""
        world = self._world
        failed = bool(world.coordinator.session.error) or self.abandoned
        if world.config.recovery != "rollback" or not failed or self.rolled_back == ROLLED_BACK_MAX:
            return False
        self._next()
        self.rolled_back += 1
        self.began_s = world.network.now_s
        self._loads = world.checkpoints.saved
        self.resume = world.checkpoints.tables.get(self._loads, {})
        world.begin_again(self._history())
        world.coordinator = CoordinatorProcess(world, world.config)
        world.servers = [
            Server(world, f"server-{rank}", self.number * GENERATIONS) for rank in range(world.config.servers)
        ]
        self._start_trainers()
        world.mishaps.begin()
        return True

    def _history(self) -> History:
        """All that the checkpoint holds is acknowledged, and nothing else has ever begun."""
        world = self._world
        history = History(list(world.scripts.values()), world.config.partition_bits)
        for stream, script in world.scripts.items() if self.resume else ():
            for op in script.ops[: world.checks.batches_at(self.resume, stream)]:
                history.started(op)
                history.acknowledged(op)
        return history

    def begin(self, shard: Shard) -> None:
        """A new server loads what it owns, before it gets any request."""
        if self._loads:
            self._world.checkpoints.load(shard, Load(self._loads, "begin"))
