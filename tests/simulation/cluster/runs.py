"""Many worlds with the same plan: how their clusters keep what they know, and what planted bugs do."""

from __future__ import annotations

from dataclasses import replace

from pslib.config import ClusterConfig
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.world import Planted, World

__all__ = ["caught", "error_of", "with_log", "with_rollback", "without_log", "worlds_of"]


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


def error_of(seed: int, planted: Planted) -> str:
    """What is wrong in one world; empty when nothing is."""
    try:
        World(seed, planted).run()
    except SimulationError as error:
        return str(error)
    return ""


def caught(planted: Planted, seeds: int = 300, first: int = 0) -> str:
    """The first error within so many seeds, without its seed; StopIteration: the bug was not caught."""
    seed, error = next((seed, error) for seed in range(first, seeds) if (error := error_of(seed, planted)))
    start, end = f"seed {seed}: ", f"; python -m tests.simulation {seed}"
    assert error.startswith(start)
    assert error.endswith(end)
    return error[len(start) : -len(end)]
