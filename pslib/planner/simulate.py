"""Discrete-event simulation of servers and trainers: the pipeline of `pslib.trainer`, with times for work.

A trainer has a thread that reads, one that pulls, one that computes and pushes, and one that takes replies.
Batches wait between them in queues; the number of permits is the staleness bound plus one, and limits the
batches in flight. A server has a thread that receives and K that own rows. All of them share the cores of
their machine, and messages the network cards of both. Equal `Scene` and seed give equal results.
No clock is read: time is a number that `Events` advances.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

READ_AHEAD = 4
"""Same as `pslib.trainer.pipeline.pipeline.READ_AHEAD`."""
SETTLED_SHARE = 0.25
"""Share of all batches before measurement starts, while queues fill."""
DONE_S = 1e-12
"""Remaining work below this is finished; sums of floats leave such remainders."""

Then = Callable[[], None]


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Cost of one batch: core seconds, and bytes. "Each" is a message to, or from, one server.

    Attributes
    ----------
    read_s, read_width : float
        Reading a batch, and its parallel cores.
    pull_s, push_s : float
        A trainer making all requests of a batch.
    compute_s, compute_width : float
        The step.
    answer_s, ack_s : float
        A trainer taking one reply to a pull; to a push.
    receive_s : float
        A server's receiving thread, each.
    pull_rows_s, push_rows_s : float
        All threads of a server that own rows, each.
    server_byte_s, trainer_byte_s : float
        The thread of either end that moves bytes between sockets and memory, for one byte in or out.
    hop_s : float
        Waking the next thread or process: latency without core time.
    pull_bytes, rows_bytes, push_bytes, ack_bytes : float
        Bytes of a request, its reply, a push, its reply; each.
    """

    read_s: float = 0.0
    read_width: float = 1.0
    pull_s: float = 0.0
    push_s: float = 0.0
    compute_s: float = 0.0
    compute_width: float = 1.0
    answer_s: float = 0.0
    ack_s: float = 0.0
    receive_s: float = 0.0
    pull_rows_s: float = 0.0
    push_rows_s: float = 0.0
    server_byte_s: float = 0.0
    trainer_byte_s: float = 0.0
    hop_s: float = 0.0
    pull_bytes: float = 0.0
    rows_bytes: float = 0.0
    push_bytes: float = 0.0
    ack_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Placement of processes on machines, with costs.

    Attributes
    ----------
    machine_cores : tuple of float
        Cores of each machine.
    servers, trainers : tuple of int
        Machine of each process.
    batch : BatchCost
    batch_rows : int
        Examples of a batch.
    staleness : int
        Batches a trainer may run ahead.
    shard_threads : int
        Threads of a server that own rows.
    network_byte_s : tuple of float
        Seconds per byte of each machine's card, each way.
    latency_s, own_byte_s : float
        Seconds per message between machines, seconds per byte within one.
    jitter : float
        Reading and computing take ``1 +- jitter`` of their time, uniformly distributed.
    seed : int
        Seed of the jitter.
    """

    machine_cores: tuple[float, ...]
    servers: tuple[int, ...]
    trainers: tuple[int, ...]
    batch: BatchCost
    batch_rows: int
    staleness: int = 2
    shard_threads: int = 1
    network_byte_s: tuple[float, ...] = ()
    latency_s: float = 0.0
    own_byte_s: float = 0.0
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Result of a simulation.

    Attributes
    ----------
    examples_per_s : float
        Rate of all trainers, after queues have filled.
    staleness_mean : float
        Batches of the same trainer in flight when one was pulled.
    server_cores, trainer_cores : float
        Busy share of the cores of machines with servers, and with trainers.
    waits_for_rows : float
        Share of a trainer's time spent waiting for rows to compute on.
    """

    examples_per_s: float
    staleness_mean: float
    server_cores: float
    trainer_cores: float
    waits_for_rows: float


# --- events, cores and network cards ------------------------------------------------------------------------


class Events:
    """Event queue; simultaneous events run in the order of scheduling."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Then]] = []
        self._number = 0

    def at(self, time_s: float, then: Then) -> None:
        """Schedule ``then`` for a time not yet past."""
        self._number += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._number, then))

    def run(self, until: Callable[[], bool]) -> None:
        """Run events until ``until`` holds or the queue is empty."""
        while self._heap and not until():
            self.now_s, _, then = heapq.heappop(self._heap)
            then()


class _Task:
    __slots__ = ("left_s", "rate", "then", "width")

    def __init__(self, work_s: float, width: float, then: Then) -> None:
        self.left_s, self.width, self.then, self.rate = work_s, width, then, 0.0


class Cores:
    """Cores of one machine, shared evenly by running tasks; no task gets more than its width.

    Attributes
    ----------
    busy_s : float
        Core seconds used.
    """

    def __init__(self, events: Events, cores: float) -> None:
        self._events, self._cores = events, cores
        self._tasks: list[_Task] = []
        self._since_s, self._version = 0.0, 0
        self.busy_s = 0.0

    def run(self, work_s: float, width: float, then: Then) -> None:
        """Run so many core seconds of work on at most ``width`` cores, then call ``then``."""
        if work_s <= DONE_S:
            self._events.at(self._events.now_s, then)
            return
        self._advance()
        self._tasks.append(_Task(work_s, width, then))
        self._share()

    def _advance(self) -> None:
        """Account for the work done since the last change."""
        passed_s = self._events.now_s - self._since_s
        self._since_s = self._events.now_s
        for task in self._tasks:
            task.left_s -= task.rate * passed_s
            self.busy_s += task.rate * passed_s

    def _share(self) -> None:
        """Assign each task its width or an even share of the remaining cores; schedule the first end."""
        free, waiting = self._cores, len(self._tasks)
        for task in sorted(self._tasks, key=lambda one: one.width):
            task.rate = min(task.width, free / waiting)
            free, waiting = free - task.rate, waiting - 1
        self._version += 1
        if self._tasks:
            version = self._version
            wait_s = min(max(task.left_s, 0.0) / task.rate for task in self._tasks)
            self._events.at(self._events.now_s + wait_s, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # A remainder below the resolution of time counts as done: the next end would be at this same moment.
        least_s = max(DONE_S, self._events.now_s * 1e-14)
        over = [task for task in self._tasks if task.left_s <= least_s]
        self._tasks = [task for task in self._tasks if task.left_s > least_s]
        self._share()
        for task in over:
            task.then()


class Worker:
    """Thread: runs tasks one after the other on shared cores."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, float, Then]] = deque()
        self._works = False

    def do(self, work_s: float, then: Then, width: float = 1.0) -> None:
        """Run a task after all earlier ones."""
        self._waiting.append((work_s, width, then))
        if not self._works:
            self._next()

    def _next(self) -> None:
        self._works = bool(self._waiting)
        if self._works:
            work_s, width, then = self._waiting.popleft()
            self._cores.run(work_s, width, lambda: self._done(then))

    def _done(self, then: Then) -> None:
        then()
        self._next()


class Network:
    """Machines with one network card each; a message occupies the sender's and the receiver's card.

    It occupies both at once if both are free (cut-through), else it waits for a busy one. A message between
    processes of one machine goes through memory, at the loopback's rate.
    """

    def __init__(
        self, events: Events, byte_s: tuple[float, ...], latency_s: float, own_byte_s: float
    ) -> None:
        self._events, self._byte_s, self._latency_s, self._own_byte_s = events, byte_s, latency_s, own_byte_s
        self._out_free, self._in_free = [0.0] * len(byte_s), [0.0] * len(byte_s)

    def send(self, source: int, target: int, count: float, then: Then) -> None:
        """Send so many bytes; call ``then`` when the last one has arrived."""
        now_s = self._events.now_s
        if source == target:
            self._events.at(now_s + count * self._own_byte_s, then)
            return
        out_s, in_s = count * self._byte_s[source], count * self._byte_s[target]
        starts_s = max(now_s, self._out_free[source])
        self._out_free[source] = starts_s + out_s
        first_s = starts_s + self._latency_s
        arrives_s = max(max(first_s, self._in_free[target]) + in_s, first_s + out_s)
        self._in_free[target] = arrives_s
        self._events.at(arrives_s, then)


# --- servers and trainers -----------------------------------------------------------------------------------


class _Server:
    def __init__(self, world: _World, machine: int) -> None:
        self._world, self.machine = world, machine
        cores = world.cores[machine]
        self._moving, self._receiving = Worker(cores), Worker(cores)
        self._shards = [Worker(cores) for _ in range(world.scene.shard_threads)]

    def request(self, sent: float, rows_s: float, answered: float, reply: Then) -> None:
        """Receive a request, process each thread's share of the rows, reply after the last."""
        batch, left = self._world.scene.batch, len(self._shards)

        def moved() -> None:  # half of the work is before the rows and half after them
            self._receiving.do(batch.receive_s / 2, received)

        def received() -> None:
            for shard in self._shards:
                shard.do(rows_s / len(self._shards), shard_done)

        def shard_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._receiving.do(batch.receive_s / 2, done)

        def done() -> None:
            self._moving.do(batch.server_byte_s * answered, reply)

        self._moving.do(batch.server_byte_s * sent, moved)


class _Trainer:
    def __init__(self, world: _World, machine: int) -> None:
        self._world, self.machine = world, machine
        cores = world.cores[machine]
        self._reading, self._pulling, self._computing = (Worker(cores) for _ in range(3))
        self._moving, self._answers = Worker(cores), Worker(cores)
        self._permits = world.scene.staleness + 1
        self._read_slots = READ_AHEAD + 1  # one more is held by the reader
        self._read, self._pulled = 0, 0
        self._pull_waits = self._computes = False
        self._arrived: set[int] = set()
        self._next_computed = 0
        self._free_since_s, self.waited_s = 0.0, 0.0

    def start(self) -> None:
        """Start reading."""
        self._read_next()

    # --- reading --------------------------------------------------------------------------------------------

    def _read_next(self) -> None:
        if self._read_slots:
            self._read_slots -= 1
            batch = self._world.scene.batch
            self._reading.do(batch.read_s * self._world.jitter(), self._read_one, batch.read_width)

    def _read_one(self) -> None:
        self._read += 1
        self._read_next()
        self._pull_next()

    # --- pulling --------------------------------------------------------------------------------------------

    def _pull_next(self) -> None:
        if self._pull_waits or not self._read or not self._permits:
            return
        self._pull_waits = True
        self._read -= 1
        self._permits -= 1
        self._read_slots += 1
        self._read_next()
        self._world.pulled(self._world.scene.staleness - self._permits)
        number, self._pulled = self._pulled, self._pulled + 1
        self._pulling.do(self._world.scene.batch.pull_s, lambda: self._send_pulls(number))

    def _send_pulls(self, number: int) -> None:
        batch = self._world.scene.batch
        self._pull_waits = False
        self._ask_all(
            batch.pull_bytes, batch.pull_rows_s, batch.rows_bytes, batch.answer_s, lambda: self._rows(number)
        )
        self._pull_next()

    def _ask_all(
        self, sent: float, rows_s: float, answered: float, take_s: float, then: Callable[[], None]
    ) -> None:
        """Send one message to each server; call ``then`` when all replies have been taken."""
        world, left = self._world, len(self._world.servers)
        byte_s = world.scene.batch.trainer_byte_s

        def taken() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        def ask(server: _Server) -> None:
            def arrived() -> None:
                self._moving.do(byte_s * answered, lambda: self._answers.do(take_s, taken))

            def reply() -> None:
                world.send(server.machine, self.machine, answered, arrived)

            def asked() -> None:
                server.request(sent, rows_s, answered, reply)

            self._moving.do(byte_s * sent, lambda: world.send(self.machine, server.machine, sent, asked))

        for server in world.servers:
            ask(server)

    # --- computing and pushing ------------------------------------------------------------------------------

    def _rows(self, number: int) -> None:
        self._arrived.add(number)
        self._compute_next()

    def _compute_next(self) -> None:
        if self._computes or self._next_computed not in self._arrived:
            return
        self._computes = True
        self._arrived.remove(self._next_computed)
        self._next_computed += 1
        events, batch = self._world.events, self._world.scene.batch
        self.waited_s += events.now_s - self._free_since_s
        self._computing.do(batch.compute_s * self._world.jitter(), self._computed, batch.compute_width)

    def _computed(self) -> None:
        self._computing.do(self._world.scene.batch.push_s, self._send_pushes)

    def _send_pushes(self) -> None:
        batch = self._world.scene.batch
        self._ask_all(batch.push_bytes, batch.push_rows_s, batch.ack_bytes, batch.ack_s, self._applied)
        self._computes = False
        self._free_since_s = self._world.events.now_s
        self._compute_next()

    def _applied(self) -> None:
        self._permits += 1
        self._world.applied()
        self._pull_next()


class _World:
    def __init__(self, scene: Scene, batches: int) -> None:
        self.scene, self.events = scene, Events()
        self.cores = [Cores(self.events, cores) for cores in scene.machine_cores]
        byte_s = scene.network_byte_s or (0.0,) * len(self.cores)
        self._network = Network(self.events, byte_s, scene.latency_s, scene.own_byte_s)
        self._random = random.Random(scene.seed)  # simulation noise, not a secret
        self.servers = [_Server(self, machine) for machine in scene.servers]
        self.trainers = [_Trainer(self, machine) for machine in scene.trainers]
        self.total, self.done = batches * len(self.trainers), 0
        self._staleness_sum = self._pulls = 0
        self._skipped = int(self.total * SETTLED_SHARE)
        self._settled_s = 0.0

    def jitter(self) -> float:
        """Return a random factor around 1."""
        spread = self.scene.jitter
        return 1.0 + spread * (2.0 * self._random.random() - 1.0) if spread else 1.0

    def send(self, source: int, target: int, count: float, then: Then) -> None:
        """Send a message; its receiver must be woken first."""
        events, hop_s = self.events, self.scene.batch.hop_s
        self._network.send(source, target, count, lambda: events.at(events.now_s + hop_s, then))

    def pulled(self, staleness: int) -> None:
        """Record the pull of a batch, with the number of its trainer's batches in flight."""
        self._staleness_sum += staleness
        self._pulls += 1

    def applied(self) -> None:
        """Record the end of a batch."""
        self.done += 1
        if self.done == self._skipped:
            self._settled_s = self.events.now_s

    def run(self) -> Simulated:
        """Run until the requested number of batches has ended, while others continue, so there is no tail."""
        for trainer in self.trainers:
            trainer.start()
        self.events.run(lambda: self.done >= self.total)
        end_s = max(self.events.now_s, 1e-12)
        counted_s = max(end_s - self._settled_s, 1e-12)
        return Simulated(
            examples_per_s=(self.done - self._skipped) * self.scene.batch_rows / counted_s,
            staleness_mean=self._staleness_sum / max(self._pulls, 1),
            server_cores=self._busy(self.scene.servers, end_s),
            trainer_cores=self._busy(self.scene.trainers, end_s),
            waits_for_rows=sum(trainer.waited_s for trainer in self.trainers) / len(self.trainers) / end_s,
        )

    def _busy(self, of: tuple[int, ...], end_s: float) -> float:
        machines = set(of)
        cores = sum(self.scene.machine_cores[machine] for machine in machines)
        return sum(self.cores[machine].busy_s for machine in machines) / cores / end_s


def simulate(scene: Scene, batches: int = 40) -> Simulated:
    """Simulate training of so many batches per trainer, on average.

    Parameters
    ----------
    scene : Scene
    batches : int
        Batches per trainer; the first quarter of all is not counted.

    Examples
    --------
    >>> batch = BatchCost(compute_s=0.1)
    >>> simulate(Scene((1.0,), (0,), (0,), batch, batch_rows=100)).examples_per_s.__round__()
    1000
    """
    return _World(scene, batches).run()
