"""Rejoin of a server that has lost its predecessor's state: what it restores before it serves.

It answers no request until it has its tables from the first client that names them, its units from the last
checkpoint, and the floors of all leases from the coordinator. Clients retry meanwhile. With a log, a server
that dies before that has logged that it is ``bare`` and not that it is ``back``: then its successor begins
anew. A client that only reads rows describes no dense parameters; where the checkpoint has some, the server
waits for another client that does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pslib.errors import CheckpointError, CheckpointIncompatibleError, LogFullError, UnavailableError
from pslib.shard.shard import Shard
from pslib.wire.fields import Message
from pslib.wire.messages import NOBODY, Load, Release, Setup

log = logging.getLogger(__name__)
FIRST_VALUES = "first values"
"""Initial state of a shard, where there was no checkpoint."""


class Rejoin:
    """Restores the shards of one server.

    Parameters
    ----------
    begins : mapping
        The coordinator's instructions (`pslib.coordinator.recovery.Recovery.begins`); empty: nothing is lost.
    generation : int
        The server's; its dense blocks count their steps from numbers that no earlier one had.
    shards : sequence of Shard
    load : callable
        Loads a checkpoint into a shard, by a message.
    put : callable
        Queues work of a shard, given its index, before anything that comes later.
    """

    def __init__(
        self,
        begins: Mapping[str, Any],
        generation: int,
        shards: Sequence[Shard],
        load: Callable[[Shard, Load], Any],
        put: Callable[[int, Callable[[Shard], None]], None],
    ) -> None:
        self._begins, self._generation, self._shards = begins, generation, shards
        self._load, self._put = load, put
        self._begun, self._misfits = False, 0

    @staticmethod
    def strip(shard: Shard) -> None:
        """Mark a new shard as one of a server that has lost its predecessor's state."""
        shard.say({"note": "bare"})
        shard.bare = True

    @property
    def waits(self) -> bool:
        """Return True if requests must still wait."""
        return any(shard.bare for shard in self._shards)

    def hear(self, message: Message) -> None:
        """Take a message that arrives meanwhile: the first description of tables, with initial values."""
        if self._begun or not isinstance(message, Setup) or message.without_values:
            return
        self._begun = True
        for shard in self._shards:
            if shard.bare:
                self._put(shard.index, partial(self._try, message))

    def _try(self, setup: Setup, shard: Shard) -> None:
        try:
            self._bring_back(setup, shard)
        except LogFullError as error:  # the next request begins it once more; completed work is repeated
            log.warning("pslib: can't come back: %s", error)
            self._begun = False
        except CheckpointIncompatibleError as error:
            if setup.dense_length:
                raise
            log.warning("pslib: can't come back with what a client has set up that only reads: %s", error)
            self._misfits += 1
            self._begun = False
        except CheckpointError as error:  # its store may answer the next process, or a newer one be complete
            raise UnavailableError(f"can't come back: {error}") from error

    def _bring_back(self, setup: Setup, shard: Shard) -> None:
        shard.setup(setup)
        for number, plain in enumerate(self._begins["loads"]):  # each try by names of its own
            stem = f"comeback-{self._generation}-{self._misfits}-{number}"
            self._load(shard, Load(stem=stem, **plain))
        shard.finish_streams(self._begins["done_below"])
        for stream, epoch, below in self._begins["streams"]:
            shard.say_later({"note": "seen", "stream": stream, "epoch": epoch, "below": below})
            shard.marks.saw(stream, epoch, below)
        for unit, version in self._begins["released"]:
            if shard.owned >> unit & 1:  # clients retry until the hand-over has created tables there
                shard.release(Release(unit, NOBODY, version))
        if shard.dense is not None:
            shard.dense.renumber(self._generation)
        shard.began_with = self._begins["moment"] or FIRST_VALUES
        shard.say({"note": "back"})
        shard.bare = False
