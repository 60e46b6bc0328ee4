"""Check that a job's dense parameters fit into a message and into the memory of the training machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError
from pslib.process.machine import memory_bytes, physical_bytes

if TYPE_CHECKING:
    from pslib.table.optimizers import Optimizer
    from rec_models import Model

__all__ = ["check_memory"]


def check_memory(
    model: Model, optimizer: Optimizer, trainers: int, servers: int, room_bytes: int | None = None
) -> None:
    """Check that the dense parameters of a run on this machine alone fit into its memory.

    The estimate is a lower bound: parameters and their gradient in each trainer, and on all servers together
    parameters and optimizer state. Rows and activations come on top.

    Parameters
    ----------
    model : Model
    optimizer : Optimizer
        Optimizer of the dense parameters.
    trainers, servers : int
    room_bytes : int, optional
        Available memory; default: that of this machine or its container.

    Raises
    ------
    ConfigurationError
        When they do not fit.
    """
    from pslib.trainer.pipeline.dense import DenseLayout

    layout = DenseLayout(model.dense_shapes())
    room = memory_bytes() if room_bytes is None else room_bytes
    floats = 2 * trainers * layout.length
    floats += layout.length + optimizer.state_floats(layout.length)
    if 4 * floats > room:
        here = "the limit of this container is" if room < physical_bytes() else "this machine has"
        raise ConfigurationError(
            f"model: {layout.length:,} dense parameters take {4 * floats / 1e9:,.1f} GB in "
            f"{trainers} trainer(s) and {servers} server(s), and {here} "
            f"{room / 1e9:,.1f} GB; {layout.advice()}, or cluster.trainers"
        )
