"""Many worlds with the same plan, and how their clusters are to keep what they know."""

from __future__ import annotations

from dataclasses import replace

from pslib.config import ClusterConfig
from tests.simulation.cluster.world import Planted, World

__all__ = ["with_log", "with_rollback", "without_log", "worlds_of"]


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
