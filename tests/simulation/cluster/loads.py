"""Collective loads in a simulated cluster: the real turns of a server, and checkpoints in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pslib.server import shard_thread
from pslib.server.shard_thread import _Loads
from pslib.shard.shard import Shard
from pslib.update_log.shard_log import ShardLog
from pslib.wire.messages import CheckLoad, Load

if TYPE_CHECKING:
    from tests.simulation.cluster.checkpoints import Checkpoints

__all__ = ["Loads"]


class Loads(_Loads):
    """What a server remembers of loads of one shard; the files are those of the simulated cluster.

    Parameters
    ----------
    checkpoints : Checkpoints
    log : ShardLog or None
    """

    def __init__(self, checkpoints: Checkpoints, log: ShardLog | None) -> None:
        super().__init__(log)
        self._checkpoints = checkpoints

    def __call__(self, shard: Shard, message: Load | CheckLoad) -> dict[str, Any]:
        with (
            patch.object(shard_thread, "load_into", self._load),
            patch.object(shard_thread, "check_load", self._checkpoints.keep),
        ):
            return super().__call__(shard, message)

    def _load(self, shard: Shard, message: Load) -> dict[str, Any]:
        self._checkpoints.load(shard, message)
        return {"rows": 0}
