"""Faults of processes while the weather lasts: broken cables, stops, kills, clocks that leap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pslib.errors import PslibError
from pslib.wire.fields import Message
from pslib.wire.messages import TrimLog
from tests.simulation.cluster.members import COORDINATOR, TIMING
from tests.simulation.cluster.network import CODEC, HEALS_S, Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

__all__ = ["Mishaps"]


class Mishaps:
    """A handful of them a world, at moments that the seed chooses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cuts = self.stops = self.drains = self.kills = self.leaps = 0
        self.deposed = self.forgotten = self.late = self.asked = self.machines = self.slow = self.trims = 0
        self.after_saves = 2
        self.begin()

    def begin(self) -> None:
        """Choose what happens in this weather."""
        world, choice = self.world, self.world.random
        for kind, most in self._kinds():
            until_s = HEALS_S + 1.0 if kind == self._kill_coordinator else HEALS_S - 0.5
            for _ in range(choice.randint(0, most)):
                world.network.after(choice.uniform(0.2, until_s), partial(self._befall, kind))

    def _befall(self, kind: Callable[[], None]) -> None:
        if not self.world.lives.down:  # else no process is there
            kind()

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        """Return the possible mishaps, and the most times of each."""
        kinds: list[tuple[Callable[[], None], int]] = [(self._cut, 4), (self._stop, 2), (self._leap, 2)]
        kinds += [(self._kill_trainer, 2), (self._forget_the_coordinator, 1), (self._ask_server_to_leave, 1)]
        if self.world.config.durability != "memory":
            kinds += [(self._kill_server, 3), (self._kill_coordinator, 2), (self._fill_disk, 1)]
            kinds += [(self._depose_coordinator, 1), (self._forget_a_server, 1), (self._come_late, 2)]
        if self.world.config.recovery == "partial":
            kinds += [(self._lose_memory, 2), (self._forget_a_server, 1)]
        return kinds

    def saved(self) -> None:
        """There is a new checkpoint: soon a server may lose what came after it."""
        if self.after_saves and self.world.config.recovery == "partial":
            self.after_saves -= 1
            self.world.network.after(self.world.random.uniform(0.0, 0.5), self._lose_memory)

    def _lose_memory(self) -> None:
        """A server is killed, and with it all that it knew."""
        if self.world.config.durability == "memory":
            self._kill_server()
        else:
            self._lose_machine()

    def _seconds(self, process: Process) -> float:
        """Draw a duration: trainers may be away for longer than it takes to be lost, others hardly."""
        most = 2.0 * TIMING.silence_s if process in self.world.trainers else 0.4 * TIMING.silence_s
        heals_s = self.world.network.heals_s
        return min(self.world.random.uniform(0.05, most), heals_s + 1.0 - self.world.network.now_s)

    def _cut(self) -> None:
        """A cable breaks between two processes, or between one and all others, perhaps one way only."""
        choice, world = self.world.random, self.world
        processes = world.processes
        one = choice.choice(processes)
        others = [other for other in processes if other is not one]
        far = others if choice.random() < 0.3 else [choice.choice(others)]
        both_ways = choice.random() < 0.7
        seconds = self._seconds(one)
        for other in far:
            tender = min((one, other), key=lambda process: process in world.trainers)
            if world.coordinator in (one, other):  # servers must be heard there
                tender = other if one is world.coordinator else one
            elif tender not in world.trainers:
                tender = world.trainers[0]  # between servers and admin anything may last
            world.network.cut(one.name, other.name, min(seconds, self._seconds(tender)), both_ways)
        self.cuts += 1

    def _forget_the_coordinator(self) -> None:
        """A trainer reaches all servers and not the coordinator: it goes on, and others have its leases."""
        world = self.world
        trainer = world.random.choice(world.trainers)
        seconds = world.random.uniform(1.0, 1.8) * TIMING.silence_s
        world.network.cut(trainer.name, world.coordinator.name, seconds)
        self.cuts += 1

    def _depose_coordinator(self) -> None:
        """Its machine is taken for dead: another one has its journal and its address, and it lives on."""
        coordinator = self.world.coordinator
        if coordinator.alive and not coordinator.deposed and not coordinator.is_stopped:
            coordinator.depose()
            self.deposed += 1

    def _ask_server_to_leave(self) -> None:
        """A server gets SIGTERM, where others can take its units."""
        alive = [server for server in self.world.servers if server.alive and server.shards]
        if len(alive) > 1:
            self.world.random.choice(alive).drain()
            self.asked += 1

    def _come_late(self) -> None:
        """A copy of a registration comes when its sender has had a successor for long."""
        world = self.world
        if world.former:
            server = world.random.choice(world.former)
            frames = CODEC.encode(world.random.getrandbits(62), server.registration())
            world.network.send(f"{server.address}/asks", COORDINATOR, frames)
            self.late += 1

    def _forget_a_server(self) -> None:
        """A server is stopped, or can't reach the coordinator, for longer than it takes to be lost."""
        choice, world = self.world.random, self.world
        alive = [server for server in world.servers if server.alive and server.shards]
        if not alive:
            return
        server, seconds = choice.choice(alive), choice.uniform(1.0, 2.0) * TIMING.silence_s
        if choice.random() < 0.5:
            server.stop(seconds)
        else:
            world.network.cut(server.name, world.coordinator.name, seconds)
        self.forgotten += 1

    def _stop(self) -> None:
        choice, world = self.world.random, self.world
        trainers = [trainer for trainer in world.trainers if trainer.alive]
        process = choice.choice(trainers if trainers and choice.random() < 0.5 else world.processes)
        process.stop(self._seconds(process))
        self.stops += 1

    def _leap(self) -> None:
        """A clock goes ahead, by less than what makes it think that it was silent."""
        process = self.world.random.choice(self.world.processes)
        process.leap(self.world.random.uniform(0.1, 0.4 * TIMING.silence_s))
        self.leaps += 1

    def _kill_server(self) -> None:
        """A server gets kill -9, at once or while it writes; or its machine loses its power."""
        world, choice = self.world, self.world.random
        alive = [server for server in world.servers if server.alive]
        if not alive:
            return
        server, disk = choice.choice(alive), world.disk
        self.kills += 1
        if choice.random() < 0.3 and server.logs is not None:
            disk(server.name).tear_next = choice.randint(0, 300)
            return
        loses_power = world.config.durability == "disk" and choice.random() < 0.5
        server.end("loses its power" if loses_power else "kill -9")
        if loses_power:
            disk(server.name).lose_power()

    def _lose_machine(self) -> None:
        """A server's machine is gone, and the log with it."""
        alive = [server for server in self.world.servers if server.alive]
        if alive:
            server = self.world.random.choice(alive)
            server.end("kill -9, and its log is gone")
            self.world.lose_disk(server.name)
            self.machines += 1

    def _fill_disk(self) -> None:
        """A disk has hardly any room for a while; after that it has."""
        world, choice = self.world, self.world.random
        disk = world.disk(choice.choice(["coordinator", *(server.name for server in world.servers)]))
        disk.space = disk.used + choice.randint(0, 600)
        world.network.tell(f"a disk has room for {disk.space - disk.used} bytes")
        world.network.after(choice.uniform(0.1, 1.5), partial(setattr, disk, "space", None))

    def _fill_disk_of_checkpoints(self) -> None:
        """Leave no space for the next checkpoint."""
        self.world.checkpoints.too_large += 1

    def _kill_coordinator(self) -> None:
        """The same to the coordinator; its successor comes at the same address."""
        world, choice = self.world, self.world.random
        coordinator = world.coordinator
        if not coordinator.alive:
            return
        self.kills += 1
        disk = world.disk("coordinator")
        if choice.random() < 0.3:
            disk.tear_next = choice.randint(0, 300)
            return
        loses_power = world.config.durability == "disk" and choice.random() < 0.5
        coordinator.end("loses its power" if loses_power else "kill -9")
        if loses_power:
            disk.lose_power()

    def _end_launcher(self) -> None:
        """All processes end with their launcher, and the run goes on from its logs."""
        self.world.lives.end_all()

    def _kill_trainer(self) -> None:
        """A trainer gets kill -9 or SIGTERM, unless it is the last; perhaps another one comes."""
        world, choice = self.world, self.world.random
        alive = [trainer for trainer in world.trainers if trainer.alive]
        if len(alive) < 2:
            return
        if choice.random() < 0.3:
            choice.choice(alive).drain()
            self.drains += 1
        else:
            choice.choice(alive).end("kill -9")
            self.kills += 1
        if choice.random() < 0.6:
            world.network.after(choice.uniform(0.1, 2.0), partial(world.start_trainer, True))

    def _kill_all_trainers(self) -> None:
        """All of them get kill -9, and each is started again at its place, some when they count as lost."""
        world = self.world
        for trainer in [one for one in world.trainers if one.alive and one.session is not None]:
            trainer.end("kill -9")
            self.kills += 1
            world.network.after(world.random.uniform(0.1, 6.0), partial(world.restart_trainer, trainer))

    def _kill_all_trainers_for_good(self) -> None:
        """Kill all of them (kill -9), and start none again."""
        for trainer in self.world.trainers:
            if trainer.alive:
                trainer.end("kill -9")
                self.kills += 1

    def _read_slowly(self) -> None:
        """For a while all that comes to a trainer waits a second or two before it is read."""
        trainer = self.world.random.choice(self.world.trainers)
        self.world.network.slow(trainer.name, self.world.random.uniform(1.0, 3.0))
        self.slow += 1

    def _trim_logs(self) -> None:
        """Ask for logs that forget what was erased."""
        world = self.world
        for server in world.servers:
            if server.alive and server.shards:
                world.admin.ask(server.address, TrimLog(), _nothing, 3.0, _nothing)
                self.trims += 1


def _nothing(_answer: Message | PslibError) -> None:
    return
