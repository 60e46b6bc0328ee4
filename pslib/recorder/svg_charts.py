"""Charts as SVG text: curves of records over examples, for a report and a notebook.

They need no library, no script and no style sheet: texts and grid have the colour of the text around them, so
that a light page and a dark one show them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pslib.recorder.records import EVALUATION, PROGRESS, Record

COLOURS = ("#2f7fd0", "#d9622b", "#2e9e63", "#a35fc7", "#c98a00", "#d1495b", "#16a0a8", "#8a8f98")
"""Colours of runs; each has a contrast of 3 or more on white and on near black."""
WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 30, 36
_DRAWN = 500
"""Most points of a curve: about one a pixel."""
_TICKS = 5
_OUTLIERS = 0.02
"""Share of values at each end that the axis may leave out: the first windows are of few examples."""
_MANY = 40
"""Values from which on some may be left out."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one chart in one colour.

    Attributes
    ----------
    name : str
        For a reader of the screen, and as the tip of a mark.
    points : sequence of (float, float)
    colour : str
        As in SVG.
    marks : bool
        True to draw a mark at each point and no line.
    """

    name: str
    points: Sequence[Point]
    colour: str
    marks: bool = False


def panels(runs: Sequence[tuple[str, Sequence[Record]]]) -> dict[str, list[Curve]]:
    """Return the charts of some runs by title, without those that have no point.

    Parameters
    ----------
    runs : sequence of (str, sequence of Record)
        Name and records of each run, of all its launches in order.
    """
    found: dict[str, list[Curve]] = {}
    for number, (name, records) in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        progress = [
            one
            for before, one in pairwise([None, *(one for one in records if one.event == PROGRESS)])
            if one is not None and (before is None or one.examples != before.examples)  # while it trains
        ]
        for title, column in _OF_PROGRESS.items():
            _add(found, title, Curve(name, _points(progress, column), colour))
        evaluations = [one for one in records if one.event == EVALUATION]
        for title, column in _OF_EVALUATIONS.items():
            for kind in dict.fromkeys(_kind(one) for one in evaluations):
                of_kind = [one for one in evaluations if _kind(one) == kind]
                _add(found, title, Curve(f"{name}, {kind}", _points(of_kind, column), colour, marks=True))
    return found


_OF_PROGRESS = {"examples/s": "examples_per_s", "loss": "loss", "AUC": "auc", "calibration": "calibration"}
_OF_EVALUATIONS = {"AUC": "auc", "calibration": "calibration", "Recall": "recall", "NDCG": "ndcg"}


def _kind(evaluation: Record) -> str:
    """Name an evaluation: ``test``, ``valid of buy``, ``test at 10``."""
    named = " of ".join(part for part in (evaluation.name, evaluation.label) if part)
    return named if evaluation.k is None else f"{named} at {evaluation.k}"


def _points(records: Iterable[Record], column: str) -> list[Point]:
    known = ((one.examples, getattr(one, column)) for one in records)
    return [(float(examples), float(value)) for examples, value in known if value is not None]


def _add(found: dict[str, list[Curve]], title: str, curve: Curve) -> None:
    if curve.points:
        found.setdefault(title, []).append(curve)


def chart(title: str, curves: Sequence[Curve], along: str = "examples") -> str:
    """Return a chart as SVG text; every text in it is escaped.

    Parameters
    ----------
    title : str
    curves : sequence of Curve
        At least one, each with a point.
    along : str
        Title of the horizontal axis.
    """
    places = [place for curve in curves for place, _ in curve.points]
    low, high = _range(curves)
    # An axis that starts at 0 shows a speed as it is; of other figures the differences count.
    low = 0.0 if title.endswith("/s") else low
    x_axis = _Axis.of(min(places), max(places), _LEFT, WIDTH - _RIGHT)
    y_axis = _Axis.of(low, high, HEIGHT - _BOTTOM, _TOP)
    names = ", ".join(dict.fromkeys(curve.name for curve in curves))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">',
        f"<title>{escape(f'{title} over {along}: {names}')}</title>",
        f'<text x="{_LEFT}" y="16" font-size="13" font-weight="600">{escape(title)}</text>',
        *_grid(x_axis, y_axis),
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end" opacity=".7">{escape(along)}</text>',
    ]
    for curve in curves:
        parts += _marks(curve, x_axis, y_axis) if curve.marks else _lines(curve, x_axis, y_axis)
    return "".join([*parts, "</svg>"])


def _range(curves: Sequence[Curve]) -> Point:
    """Return the values that the vertical axis holds: all marks, and the lines but for their outliers."""
    lines = sorted(value for curve in curves if not curve.marks for _, value in curve.points)
    cut = int(len(lines) * _OUTLIERS) if len(lines) >= _MANY else 0
    marks = [value for curve in curves if curve.marks for _, value in curve.points]
    held = [*marks, *lines[cut : len(lines) - cut]]
    return min(held), max(held)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axis from ``low`` to ``high``, drawn from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    step: float

    @staticmethod
    def of(low: float, high: float, start: float, end: float) -> _Axis:
        """Return an axis with round steps that holds both values."""
        if high <= low:
            low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
        rough = (high - low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(nice for nice in (1, 2, 2.5, 5, 10) if rough <= nice * power * 1.0001)
        return _Axis(math.floor(low / step) * step, math.ceil(high / step) * step, start, end, step)

    def at(self, value: float) -> float:
        """Return the place of a value; one beyond the axis is at its end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Values with a line of the grid."""
        return [
            self.low + number * self.step for number in range(round((self.high - self.low) / self.step) + 1)
        ]

    def text(self, value: float) -> str:
        """Format a tick: short, and different from the next one."""
        for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if max(abs(self.low), abs(self.high)) >= unit:
                return f"{value / unit:.{_decimals(self.step / unit)}f}{sign}" if value else "0"
        return f"{value:.{_decimals(self.step)}f}"


def _decimals(step: float) -> int:
    """Return the number of decimals by which multiples of a step differ."""
    decimals = next(
        (count for count in range(9) if abs(step * 10**count - round(step * 10**count)) < 1e-6), 9
    )
    return decimals


def _grid(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    for value in y_axis.ticks:
        y, said = y_axis.at(value), y_axis.text(value)
        yield (
            f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="currentColor" opacity=".15"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" opacity=".8">{said}</text>'
        )
    for value in x_axis.ticks:
        yield (
            f'<text x="{x_axis.at(value):.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle" '
            f'opacity=".8">{x_axis.text(value)}</text>'
        )


def _lines(curve: Curve, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    """Yield a line for each stretch that goes forward: examples that are trained again begin another one."""
    stretches: list[list[Point]] = []
    for point in curve.points:
        if not stretches or point[0] < stretches[-1][-1][0]:
            stretches.append([])
        stretches[-1].append(point)
    for stretch in stretches:
        drawn = [f"{x_axis.at(x):.1f} {y_axis.at(y):.1f}" for x, y in _thinned(stretch)]
        ends = f"M{drawn[0]}h.01" if len(drawn) == 1 else f"M{'L'.join(drawn)}"
        width = 5 if len(drawn) == 1 else 1.7
        yield (
            f'<path d="{ends}" fill="none" stroke="{curve.colour}" stroke-width="{width}" '
            f'stroke-linejoin="round" stroke-linecap="round"><title>{escape(curve.name)}</title></path>'
        )


def _marks(curve: Curve, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    for x, y in _thinned(curve.points):
        tip = escape(f"{curve.name}: {y:.4f} at {x:,.0f}")
        yield (
            f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="4" fill="{curve.colour}" '
            f'stroke="currentColor" stroke-width=".6"><title>{tip}</title></circle>'
        )


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most about `_DRAWN` points, with the least and the largest value of each part."""
    if len(points) <= _DRAWN:
        return points
    size = -(-2 * len(points) // _DRAWN)
    kept: list[Point] = [points[0]]
    for first in range(0, len(points), size):
        part = points[first : first + size]
        kept += sorted({min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])})
    return [*kept, points[-1]]
