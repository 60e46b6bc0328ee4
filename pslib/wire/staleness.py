"""Staleness of gradients: pushes of all trainers that servers apply between a batch's pull and its push.

This is the delay of asynchronous SGD in its literature (Zhang, Gupta, Lian and Liu, Staleness-aware
Async-SGD, arXiv:1511.05950, section 3.1: the updates that weights have seen since the gradient's weights were
read). Each server counts its pushes, and sends the count before a pull reads and before a push steps
(`pslib.wire.messages.Pulled`, `Pushed`); this module takes the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

BETWEEN_MAX = 1 << 32
"""Maximum of one measurement: a larger one is no count, and sums have to fit a heartbeat."""


class Seen(dict[int, int]):
    """Pushes that each server had applied when a pull read it. Only pulls create one."""


NOTHING_SEEN = Seen()
"""Default for a push whose pull is not known: nothing is measured."""


@dataclass(slots=True)
class StalenessCounter:
    """Sum, number and maximum of the measurements; one for each server that a push went to.

    A push that a server had applied before (its acknowledgement was lost, and it was sent again) gives none;
    nor does one to a server that did not answer the pull or whose count restarted since then.
    """

    sum: int = 0
    count: int = 0
    max: int = 0

    def note(self, before_pull: int, before_push: int) -> None:
        """Add one server's two counts, of `Pulled` and of `Pushed`; 0 is not known."""
        between = before_push - before_pull
        if before_pull and 0 <= between <= BETWEEN_MAX:
            self.sum += between
            self.count += 1
            self.max = max(self.max, between)
