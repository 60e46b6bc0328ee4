"""What a caller gives to a client, checked before anything is begun: a mistake is told in one line."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from numbers import Real
from threading import TIMEOUT_MAX
from types import NoneType
from typing import Any

import numpy as np

from pslib.arguments import came
from pslib.errors import ConfigurationError
from pslib.protocol.calls import Manner, Moment, PushName
from pslib.protocol.pushes_between import Seen
from pslib.shard.push_counts import checked_dense, kind_of

__all__ = ["by_table", "check_process", "check_push", "check_timeout", "moment_of"]

STEP_MAX = (1 << 64) - 1


def by_table(keys: Any) -> Mapping[str, Any]:
    """The keys of a call; ConfigurationError when they are not given by the names of tables."""
    if not isinstance(keys, Mapping):
        raise ConfigurationError(f"keys: expected a dict such as {{'item': keys}}, got {kind_of(keys)}")
    return keys


def moment_of(step: Any, time_s: Any) -> Moment:
    """When a call happens; a NumPy integer is a step too."""
    try:
        whole = operator.index(step)
    except TypeError:
        whole = -1
    if isinstance(step, (bool, np.bool_)) or not 0 <= whole <= STEP_MAX:
        raise ConfigurationError(f"step: expected an integer in 0..2^64-1, got {came(step)}")
    try:
        seconds = float(time_s)
    except (TypeError, ValueError, OverflowError):
        seconds = np.nan
    if not np.isfinite(seconds):
        raise ConfigurationError(f"time_s: expected a finite number of seconds, got {came(time_s)}")
    return Moment(whole, seconds)


def check_process(process: int) -> None:
    """ConfigurationError in a fork: the thread that answers, and perhaps a lock's owner, is not in it."""
    if os.getpid() != process:
        raise ConfigurationError(
            "this process is a fork of one that belongs to a cluster, and can't use its connection: call "
            "pslib.connect(...) here, or start it with multiprocessing's 'spawn'"
        )


def check_push(gradients: Any, dense: Any, name: Any, manner: Any, since: Any, dense_length: int) -> None:
    """ConfigurationError for gradients that are no pairs by names of tables, or for what goes with them."""
    if not isinstance(gradients, Mapping):
        raise ConfigurationError(
            f"gradients: expected a dict such as {{'item': (keys, gradients)}}, got {kind_of(gradients)}"
        )
    for table, pair in gradients.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            got = f"{len(pair)} values" if isinstance(pair, (tuple, list)) else kind_of(pair)
            raise ConfigurationError(f"gradients of {table}: expected a pair (keys, gradients), got {got}")
    if dense is not None:
        checked_dense(dense, dense_length)
    if not isinstance(name, (PushName, NoneType)):
        raise ConfigurationError(f"name: expected a PushName(stream, number) or None, got {kind_of(name)}")
    if not isinstance(manner, Manner):
        raise ConfigurationError(f"manner: expected a Manner(...), got {kind_of(manner)}")
    if not isinstance(since, Seen):
        raise ConfigurationError(f"since: expected `pulled.seen` of a pull, got {kind_of(since)}")


def check_timeout(timeout_s: Any, or_none: str = ", or None") -> None:
    """ConfigurationError unless a wait can be so long."""
    number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if not number or not 0 <= timeout_s <= TIMEOUT_MAX:
        raise ConfigurationError(f"timeout_s: expected seconds, 0 or more{or_none}, got {came(timeout_s)}")
