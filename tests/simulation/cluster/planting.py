"""Planted bugs: which worlds find them, and what they say."""

from __future__ import annotations

from tests.simulation.cluster.world import Planted, World
from tests.support.simulated.invariants import SimulationError

__all__ = ["caught", "error_of"]


def error_of(seed: int, planted: Planted) -> str:
    """What is wrong in one world; empty when nothing is."""
    try:
        World(seed, planted).run()
    except SimulationError as error:
        return str(error)
    return ""


def caught(planted: Planted, seeds: int) -> str:
    """The first error within so many seeds, without its seed; StopIteration: the bug was not caught."""
    seed, error = next((seed, error) for seed in range(seeds) if (error := error_of(seed, planted)))
    start, end = f"seed {seed}: ", f"; python -m tests.simulation {seed}"
    assert error.startswith(start)
    assert error.endswith(end)
    return error[len(start) : -len(end)]
