"""Clicks on news by readers whose tastes drift: planted, so the best possible AUC of a moment is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SEGMENTS, TOPICS, ARTICLES = 24, 8, 160
FILES_AN_HOUR, ROWS = 20, 2000
PERIOD_HOURS = 4.0
"""Time in which the taste of a segment for a topic rises, falls and is back."""

_planted = np.random.default_rng(11)
_phase = _planted.random((SEGMENTS, TOPICS))
_strength = _planted.uniform(1.0, 3.0, (SEGMENTS, TOPICS))
_topic = _planted.integers(0, TOPICS, ARTICLES)
_appeal = _planted.normal(0.0, 0.5, ARTICLES)


def probability(segment: NDArray[np.int64], article: NDArray[np.int64], hour: float) -> NDArray[np.float64]:
    """Return the true probability of a click at a time, in hours: 1 / (1 + exp(-(taste + appeal - 1)))."""
    topic = _topic[article]
    taste = _strength[segment, topic] * np.sin(2 * np.pi * (hour / PERIOD_HOURS + _phase[segment, topic]))
    return 1 / (1 + np.exp(1.0 - taste - _appeal[article]))


def clicks(number: int) -> pa.Table:
    """Return the clicks of a file, by its number from 0: segment, article, click (0 or 1)."""
    choice = np.random.default_rng((7, number))
    segment, article = choice.integers(0, SEGMENTS, ROWS), choice.integers(0, ARTICLES, ROWS)
    click = choice.random(ROWS) < probability(segment, article, number / FILES_AN_HOUR)
    return pa.table({"segment": segment, "article": article, "click": click.astype(np.int8)})
