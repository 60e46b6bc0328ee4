"""A server that comes back without what its predecessor knew: what it does before it serves.

Nobody is answered until it has its tables from the first client that names them, its units from the last
checkpoint, and the floors of all leases from the coordinator. Whoever asks meanwhile asks again. With a log,
one that dies before it has all of that has written that it is ``bare`` and not that it is ``back``: then the
next one begins anew. A client that only reads rows describes no dense parameters; where the checkpoint has
some, another client is waited for that does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pslib.errors import CheckpointError, CheckpointIncompatibleError, LogFullError, UnavailableError
from pslib.shard.shard import Shard
from pslib.wire.messages import NOBODY, Load, Message, Release, Setup

__all__ = ["FIRST_VALUES", "Rejoin"]

log = logging.getLogger("pslib")
FIRST_VALUES = "first values"
"""What a shard began with, where there was no checkpoint."""


class Rejoin:
    """Brings the shards of one server back.

    Parameters
    ----------
    begins : mapping
        What the coordinator has said (`pslib.coordinator.recovery.Recovery.begins`); empty: nothing is lost.
    generation : int
        The server's; its dense blocks count their steps from numbers that no earlier one had.
    shards : sequence of Shard
    load : callable
        Loads a checkpoint into a shard, as the message says.
    put : callable
        Lets a shard, given its index, do some work before anything that comes later.
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
        """A new shard is one of a server that has lost what it knew."""
        shard.say({"note": "bare"})
        shard.bare = True

    @property
    def waits(self) -> bool:
        """Whether nothing may be answered yet."""
        return any(shard.bare for shard in self._shards)

    def hear(self, message: Message) -> None:
        """Take what has come while it waits: the first description of tables, with first values."""
        if self._begun or not isinstance(message, Setup) or message.without_values:
            return
        self._begun = True
        for shard in self._shards:
            if shard.bare:
                self._put(shard.index, partial(self._try, message))

    def _try(self, setup: Setup, shard: Shard) -> None:
        try:
            self._bring_back(setup, shard)
        except LogFullError as error:  # whoever asks next begins it once more; what is done is done again
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
            if shard.owned >> unit & 1:  # who asks for it asks again until the hand-over has tables there
                shard.release(Release(unit, NOBODY, version))
        if shard.dense is not None:
            shard.dense.renumber(self._generation)
        shard.began_with = self._begins["moment"] or FIRST_VALUES
        shard.say({"note": "back"})
        shard.bare = False
