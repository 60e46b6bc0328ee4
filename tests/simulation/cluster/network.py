"""Time as a number in a heap, a network that loses, doubles, delays and is cut, and processes on it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from pslib.wire.codec import Codec
from tests.support.simulated.files import KilledError

__all__ = ["CODEC", "HEALS_S", "Network", "Process", "host_of"]

CODEC = Codec("simulated")
HEALS_S = 4.0
"""From here on the network is whole, and no process is harmed; what is under way still comes late."""
DAYS_S = 86400.0


def host_of(address: str) -> str:
    """The name of the process, whatever its generation: what a broken cable is about."""
    return address.partition(".")[0]


class Network:
    """All events, and all messages between addresses.

    Parameters
    ----------
    choice : random.Random
        All that is random.
    trace : callable or None
        Is told every delivery and every mishap.
    """

    def __init__(self, choice: random.Random, trace: Callable[[str], None] | None = None) -> None:
        self.random, self._trace = choice, trace
        self.now_s = 0.0
        self.messages = self.lost_to_cuts = 0
        self.heals_s = HEALS_S
        self._cluster = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._doors: dict[str, Callable[[str, list[bytes]], None]] = {}
        self._cut_until_s: dict[tuple[str, str], float] = {}
        self._slow_until_s: dict[str, float] = {}
        self._loss = choice.choice([0.0, 0.05, 0.2])
        self._doubles = choice.choice([0.0, 0.2])

    # --- time ---------------------------------------------------------------------------------------------

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, event))

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._events:
            return False
        self.now_s, _number, event = heapq.heappop(self._events)
        event()
        return True

    def tell(self, text: str) -> None:
        """Write a line of the trace."""
        if self._trace:
            self._trace(f"{self.now_s:9.4f} {text}")

    def begin_again(self) -> None:
        """Another cluster begins in new weather: what is on its way in the old one is dropped."""
        self.heals_s = self.now_s + HEALS_S
        self._cluster += 1

    # --- messages -----------------------------------------------------------------------------------------

    def open(self, address: str, door: Callable[[str, list[bytes]], None]) -> None:
        """Messages to this address go through ``door`` from now on."""
        self._doors[address] = door

    def close(self, address: str) -> None:
        """Messages to this address are lost from now on, those on their way too."""
        self._doors.pop(address, None)

    def cut(self, one: str, other: str, seconds: float, both_ways: bool = True) -> None:
        """Let nothing pass from ``one`` to ``other`` for a while."""
        for pair in ((one, other), (other, one))[: 2 if both_ways else 1]:
            self._cut_until_s[pair] = max(self._cut_until_s.get(pair, 0.0), self.now_s + seconds)
        self.tell(f"cut: {one} {'--' if both_ways else '->'} {other} for {seconds:.2f} s")

    def slow(self, name: str, seconds: float) -> None:
        """Let a process read late what comes to it, for a while."""
        self._slow_until_s[name] = self.now_s + seconds
        self.tell(f"{name} reads slowly for {seconds:.2f} s")

    def send(self, source: str, target: str, frames: Sequence[Any]) -> None:
        """Lose, double, delay: a message arrives never, once or twice, and not in order."""
        healed = self.now_s >= self.heals_s
        if not healed and self.random.random() < self._loss:
            return
        sent = [bytes(frame) for frame in frames]
        for _ in range(1 if healed or self.random.random() >= self._doubles else 2):
            self.messages += 1
            delay_s = self._delay_s(healed)
            if self._slow_until_s.get(host_of(target), 0.0) > self.now_s:
                delay_s += self.random.uniform(0.5, 2.0)
            self.after(delay_s, partial(self._deliver, self._cluster, source, target, sent))

    def _delay_s(self, healed: bool) -> float:
        kind = 1.0 if healed else self.random.random()
        if kind < 0.03:
            return self.random.uniform(1.0, 5.0)
        return self.random.uniform(0.05, 1.0) if kind < 0.1 else self.random.uniform(0.001, 0.03)

    def _deliver(self, cluster: int, source: str, target: str, frames: list[bytes]) -> None:
        if cluster != self._cluster:
            return
        if self._cut_until_s.get((host_of(source), host_of(target)), 0.0) > self.now_s:
            self.lost_to_cuts += 1
            return
        door = self._doors.get(target)
        if door is None:
            return
        if self._trace:
            self.tell(f"{source} -> {target}: {CODEC.decode(frames)}")
        door(source, frames)


class Process:
    """Something that lives for a while, is stopped, goes on and dies, with a clock of its own.

    Parameters
    ----------
    network : Network
        Time and messages.
    name : str
        Name on the network; a successor has the same one.
    generation : int
        Part of its address.
    """

    def __init__(self, network: Network, name: str, generation: int = 1) -> None:
        self.network, self.name, self.generation = network, name, generation
        self.address = f"{name}.{generation}"
        self.alive = True
        self.ended = ""
        """Why it does not live any more."""
        self.ended_s = inf
        self._clock_ahead_s = network.random.uniform(0, 100 * DAYS_S)
        self._goes_on_s = 0.0
        self._missed: list[tuple[bool, Callable[[], None]]] = []
        self._doors: list[str] = []

    def __repr__(self) -> str:
        return self.address

    def now_s(self) -> float:
        """Monotonic seconds of this process; of others they say nothing."""
        return self.network.now_s + self._clock_ahead_s

    def sleep_s(self, seconds: float) -> None:
        """Part of `pslib.clock.Clock`; nothing in a simulated world may wait."""
        raise AssertionError("a simulated process does not sleep")

    def leap(self, seconds: float) -> None:
        """Its clock goes ahead by so much at once."""
        self._clock_ahead_s += seconds
        self.network.tell(f"{self}: its clock leaps {seconds:.2f} s")

    def listen(self, address: str, receive: Callable[[str, list[bytes]], None]) -> None:
        """Take messages to an address, while alive; one that is stopped finds them when it goes on."""
        self._doors.append(address)

        def door(source: str, frames: list[bytes]) -> None:
            self._happen(partial(receive, source, frames), True)

        self.network.open(address, door)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen in this process later."""
        self.network.after(delay_s, partial(self._happen, event, False))

    def _happen(self, event: Callable[[], None], is_message: bool) -> None:
        if not self.alive:
            return
        if self.is_stopped:
            self._missed.append((is_message, event))
        else:
            try:
                event()
            except KilledError:
                self.end("kill -9 while it wrote")

    @property
    def is_stopped(self) -> bool:
        """True if the process is stopped for now."""
        return self._goes_on_s > self.network.now_s

    def stop(self, seconds: float) -> None:
        """Do nothing for a while, like a process that got SIGSTOP: what comes waits."""
        self._goes_on_s = max(self._goes_on_s, self.network.now_s + seconds)
        self.network.tell(f"{self} is stopped for {seconds:.2f} s")
        self.network.after(seconds, self._go_on)

    def _go_on(self) -> None:
        if self.is_stopped or not self.alive:
            return
        missed, self._missed = self._missed, []
        for _is_message, event in sorted(missed, key=lambda one: not one[0]):  # first what its sockets hold
            self._happen(event, False)

    def end(self, why: str) -> None:
        """Be no more: by a kill, or at the end of its work."""
        if self.alive:
            self.alive, self.ended, self.ended_s = False, why, self.network.now_s
            self.network.tell(f"{self} ends: {why}")
            for address in self._doors:
                self.network.close(address)
