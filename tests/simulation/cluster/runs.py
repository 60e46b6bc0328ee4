"""Many worlds with the same plan: how their clusters keep what they know, and what planted bugs do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from pslib.config import ClusterConfig
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.world import Planted, World

__all__ = ["caught", "first_error", "with_log", "with_rollback", "without_log", "worlds_of"]


def with_log(config: ClusterConfig) -> ClusterConfig:
    durability = "log" if config.durability == "memory" else config.durability
    return replace(config, recovery="log", durability=durability)


def without_log(config: ClusterConfig) -> ClusterConfig:
    return replace(config, recovery="log", durability="memory")


def with_rollback(config: ClusterConfig) -> ClusterConfig:
    return replace(config, recovery="rollback")


def worlds_of(planted: Planted, seeds: int) -> list[World]:
    """One world for each seed; all have ended."""
    return [World(seed, planted).run() for seed in range(seeds)]


def first_error(run: Callable[[int], object], seeds: Iterable[int]) -> str:
    """Return the error of the first world in which anything is wrong; empty: all is well in all of them."""
    for seed in seeds:
        try:
            run(seed)
        except SimulationError as error:
            return str(error)
    return ""


def first_error_of_bug(
    with_bug: Callable[[int], object], without: Callable[[int], object], seeds: Iterable[int]
) -> str:
    """Return the error of the first world that a bug ends, where the same world without it is well."""
    for seed in seeds:
        if error := first_error(with_bug, [seed]):
            without(seed)
            return error
    return ""


def caught(planted: Planted, seeds: int = 300, first: int = 0) -> str:
    """Return the error of the first of these worlds that finds a bug, without its seed."""
    error = first_error(lambda seed: World(seed, planted).run(), range(first, seeds))
    found = re.fullmatch(r"seed (\d+): (.*); python -m tests\.simulation \1", error, re.DOTALL)
    assert found, error or f"not caught in {seeds} worlds"
    return found[2]
