"""One simulated cluster: its processes, their faults, and its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pslib.config import ClusterConfig
from pslib.coordinator.session import CoordinatorSession
from pslib.server.rejoin import Rejoin
from pslib.shard.shard import Shard
from pslib.table.partition_map import PartitionMap, mask_of_units
from pslib.update_log.shard_log import ShardLog
from pslib.wire.applied_pushes import Marks
from tests.simulation.cluster.checkpoints import Checkpoints
from tests.simulation.cluster.checks import Checks
from tests.simulation.cluster.coordinator import CoordinatorProcess
from tests.simulation.cluster.history import History, SimulationError
from tests.simulation.cluster.lives import Lives
from tests.simulation.cluster.members import TIMING, Member
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.moves import Admin, RestlessMoves
from tests.simulation.cluster.network import Network, Process
from tests.simulation.cluster.server import Server
from tests.simulation.cluster.trainer import Trainer
from tests.simulation.cluster.workload import DENSE_BLOCKS, Script, lease_scripts, own_script
from tests.support.simulated.files import SimulatedDisk

__all__ = ["Planted", "World"]

PARTITION_BITS = 6
PARTIAL = 0x70617274
"""Chooses the worlds in which lost servers begin at checkpoints, and leaves the others as they were."""
DRAINED_S = 90.0
"""By then everything must be over: liveness."""


@dataclass(frozen=True)
class Planted:
    """Parts of a world; tests put broken pieces in."""

    marks: Callable[[], Marks] = Marks
    make_shard: Callable[..., Shard] = Shard
    change_coordinator: Callable[[CoordinatorSession], object] = lambda _session: None
    make_journal: Callable[..., ShardLog] = ShardLog
    make_mishaps: Callable[..., Mishaps] = Mishaps
    make_comeback: Callable[..., Rejoin] = Rejoin
    make_trainer: Callable[..., Trainer] = Trainer
    save_every_s: float = 0.0
    """Seconds between saves in all jobs; 0: some jobs are saved, and some are not."""
    change_config: Callable[[ClusterConfig], ClusterConfig] = lambda config: config


class World:
    """A cluster and its weather.

    Parameters
    ----------
    seed : int
        All that is random.
    planted : Planted
        Parts that it is made of.
    trace : callable or None
        Is told every delivery.
    """

    def __init__(
        self, seed: int, planted: Planted = Planted(), trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed, self.planted = seed, planted
        self.random = choice = random.Random(seed)
        self.network = Network(choice, trace)
        self.config = ClusterConfig(
            servers=choice.randint(2, 3),
            trainers=choice.randint(2, 3),
            shard_threads=choice.randint(1, 2),
            partition_bits=PARTITION_BITS,
            dense_blocks=DENSE_BLOCKS,
            durability=choice.choice(["memory", "log", "log", "disk", "disk"]),
            restarts=5,
            timing=TIMING,
        )
        if random.Random(seed ^ PARTIAL).random() < (0.5 if self.config.durability == "memory" else 0.2):
            self.config = replace(self.config, recovery="partial")
        self.config = planted.change_config(self.config)
        self.checkpoints = Checkpoints(self)
        self.lives = Lives(self)
        self._disks: dict[str, SimulatedDisk] = {}
        self.credit_bytes = choice.choice([0, 0, 1500])
        units = self.config.units
        blocks = range(self.config.partitions, units)
        self.restless = choice.sample(range(self.config.partitions), 4) + choice.sample(blocks, 1)
        self._make_scripts()
        self._errors: list[BaseException] = []
        every_s = choice.uniform(0.3, 1.5)
        saves = choice.random() < 0.5 or planted.save_every_s > 0
        self.details = {"checkpoint": {"every_s": planted.save_every_s or every_s}} if saves else {}
        """Details of jobs: set if they are saved while they go on."""
        self._moving = False
        self.checks = Checks(self)
        self.coordinator = CoordinatorProcess(self, self.config)
        self.servers = [Server(self, f"server-{index}") for index in range(self.config.servers)]
        self.former: list[Server] = []
        """Servers that have been started again since."""
        self.abandoned: set[str] = set()
        """Names of servers that are not started again."""
        self.torn: set[str] = set()
        """Names of servers whose logs have lost their ends."""
        self.trainers: list[Trainer] = []
        self.admin = Admin(self)
        for _ in range(self.config.trainers):
            self.start_trainer(choice.random() < 0.4)
        self.mishaps = planted.make_mishaps(self)

    def _make_scripts(self) -> None:
        choice = self.random
        jobs = [choice.randint(2, 5) for _ in range(choice.randint(1, 2))]
        self.windows = [np.arange(leases, dtype=np.uint32) // 2 for leases in jobs]
        leases = lease_scripts(choice, jobs, self.restless, PARTITION_BITS)
        self.scripts: dict[int, Script] = {script.stream: script for script in leases}
        self.history = History(leases, PARTITION_BITS)

    # --- live processes -----------------------------------------------------------------------------------

    def start_trainer(self, own: bool) -> None:
        """One more trainer; with a stream of its own beside its leases, or without."""
        number = len(self.trainers)
        script = own_script(self.random, number, self.restless, PARTITION_BITS) if own else None
        if self.config.recovery != "log" or self.lives.down:  # no cut waits for a stream of one's own
            script = None
        if script:
            self.history.add(script)
        if not self.lives.down:
            self.trainers.append(self.planted.make_trainer(self, f"trainer-{number}", script))

    def restart_trainer(self, trainer: Trainer) -> None:
        """Its successor, at its place; streams of its own died with it."""
        if not (self.coordinator.session.error or self.lives.down):
            about = trainer.name, None, trainer.generation + 1, trainer.rank
            self.trainers[self.trainers.index(trainer)] = self.planted.make_trainer(self, *about)

    def disk(self, machine: str) -> SimulatedDisk:
        """Return the disk of a process's machine, the same for all its generations."""
        if machine not in self._disks:
            self._disks[machine] = SimulatedDisk(self.random.getrandbits(32))
        return self._disks[machine]

    def lose_disk(self, machine: str) -> None:
        """A machine is gone with all that it has written."""
        self._disks.pop(machine, None)

    def given_to(self, rank: int) -> list[int]:
        """Units that move to a server just now."""
        wave = self.moves.wave
        return [] if wave is None else wave.units[wave.targets == rank].tolist()

    @staticmethod
    def place_of(name: str) -> int:
        """The rank of a server that has a log, whichever generation it is."""
        return int(name.partition("-")[2])

    def server_ended(self, server: Server) -> None:
        """Act as the launcher: start a server again that was killed, or was told that it is lost."""
        has_left = (server.ended == "has left" and not server.early) or server.name in self.abandoned
        if not self.config.servers_come_back or has_left or self.lives.down:
            return
        about = server, self.lives.number
        self.network.after(self.random.uniform(0.05, 1.5), partial(self._start_again, *about))

    def _start_again(self, server: Server, life: int) -> None:
        if not self.coordinator.session.error and not self.lives.down and life == self.lives.number:
            self.replace_server(server)

    def replace_server(self, server: Server) -> None:
        """Start its successor."""
        self.former.append(server)
        self.servers[self.servers.index(server)] = Server(self, server.name, server.generation + 1)

    def restart_coordinator(self, before: CoordinatorProcess) -> None:
        """At the same address, with the same journal."""
        if before is self.coordinator and not self.lives.down:
            self.coordinator = CoordinatorProcess(self, self.config, before)

    def begin_again(self, history: History) -> None:
        """Nothing that was there before is used any more, and ``history`` says what is in the tables."""
        self.admin.end("its run has failed")
        self.network.begin_again()
        self._disks.clear()
        self.history, self.checks = history, Checks(self)
        self.former, self._moving = [], False
        self.admin = Admin(self)

    def start_server(self) -> None:
        """One more server, which owns nothing at first."""
        self.servers.append(Server(self, f"server-{len(self.servers)}"))

    def server_joined(self) -> None:
        """A server has its units; when all of the first ones have, units begin to move."""
        if self.all_servers_live and not self._moving:
            self._moving = True
            self.admin.begin()

    @property
    def map(self) -> PartitionMap:
        """The newest map that is published."""
        current = self.coordinator.session.members.map
        assert current is not None
        return current

    @property
    def moves(self) -> RestlessMoves:
        """The coordinator's."""
        moves = self.coordinator.session.moves
        assert isinstance(moves, RestlessMoves)
        return moves

    @property
    def ranks(self) -> list[int]:
        """Ranks of the servers that could own units."""
        return [server.rank for server in self.servers if server.shards and server.alive]

    @property
    def processes(self) -> list[Process]:
        """All live processes."""
        processes = [self.coordinator, self.admin, *self.servers, *self.trainers]
        return [process for process in processes if process.alive]

    @property
    def carried(self) -> int:
        """Units that are between two servers."""
        wave = self.moves.wave
        return 0 if wave is None else mask_of_units(wave.units)

    @property
    def all_servers_live(self) -> bool:
        """True if every unit could have an owner."""
        return all(
            server.shards and not server.waits and (server.alive or server.ended == "has left")
            for server in self.servers
        )

    def live_shards(self) -> Iterator[Shard]:
        """Shards of servers that have joined."""
        for server in self.servers:
            if (server.alive or server.ended == "has left") and not server.waits:
                yield from server.shards

    # --- what happens -------------------------------------------------------------------------------------

    def found(self, error: BaseException) -> None:
        """Record an error seen where it can't be raised."""
        self._errors.append(error)

    @property
    def _over(self) -> bool:
        members: list[Member] = [*self.servers, *self.trainers]
        over = self.lives.abandoned or (self.coordinator.session.over and not self.lives.down)
        return over and not any(member.alive for member in members)

    def run(self) -> World:
        """Let it all happen, then check the end.

        Raises
        ------
        SimulationError
            When anything is not as it must be; the text ends in the command that shows it again.
        """
        try:
            self._run()
            self.checks.check_end()
        except Exception as error:
            what = str(error) if isinstance(error, SimulationError) else f"{type(error).__name__}: {error}"
            text = f"seed {self.seed}: {what}; python -m tests.simulation {self.seed}"
            raise SimulationError(text) from error
        return self

    def _run(self) -> None:
        while not self._over or self.lives.begin_again():
            self.network.step()
            if self._errors:
                raise self._errors[0]
            if self.network.now_s > self.lives.began_s + DRAINED_S:
                waiting = [str(member) for member in (*self.servers, *self.trainers) if member.alive]
                raise SimulationError(
                    f"not over after {DRAINED_S:g} s: {', '.join(waiting) or 'coordinator'}"
                )
