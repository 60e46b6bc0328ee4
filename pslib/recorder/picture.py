"""Chart of a run: loss, AUC and speed over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pslib.recorder.display import short
from pslib.recorder.status import Window

_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57")
_FEW_POINTS = 30


def picture(
    points: Sequence[Window], evaluations: Sequence[tuple[float, float, str]], summary: Mapping[str, Any]
) -> Any:
    """Plot loss, AUC (if there is any) and speed over seconds, as a matplotlib figure."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display needed
    from matplotlib.ticker import FuncFormatter

    seconds = np.array([point.seconds for point in points])
    figure = Figure(figsize=(9, 9), dpi=110, layout="constrained")
    ranks = not evaluations and not any(np.isfinite(point.auc_recent) for point in points)
    panels = figure.subplots(2 if ranks else 3, 1, sharex=True)
    loss, speed = panels[0], panels[-1]
    figure.suptitle(_title(summary), fontsize=12)
    dot = "o" if len(points) <= _FEW_POINTS else ""  # a run of a few seconds has too few points for a line
    loss.plot(seconds, [point.loss for point in points], color=_COLOURS[0], lw=1.6, marker=dot, ms=3)
    loss.set_ylabel("log loss (last second)")
    if not ranks:
        _draw_auc(panels[1], points, evaluations, dot)
    speed.fill_between(
        seconds, [point.examples_per_s for point in points], color=_COLOURS[2], alpha=0.25, lw=0
    )
    speed.plot(
        seconds, [point.examples_per_s for point in points], color=_COLOURS[2], lw=1.6, marker=dot, ms=3
    )
    speed.set_ylabel("examples/s")
    speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    speed.set_xlabel("seconds since the start")
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_auc(
    auc: Any, points: Sequence[Window], evaluations: Sequence[tuple[float, float, str]], dot: str
) -> None:
    auc.plot(
        [point.seconds for point in points],
        [point.auc_recent for point in points],
        color=_COLOURS[0],
        lw=1.6,
        marker=dot,
        ms=3,
        label="before training on it",
    )
    for number, kind in enumerate(dict.fromkeys(kind for *_, kind in evaluations)):
        chosen = [(second, value) for second, value, of in evaluations if of == kind]
        auc.plot(*zip(*chosen, strict=True), "o", color=_COLOURS[1 + number % 2], ms=7, label=kind)
    if evaluations:
        second, value, _ = evaluations[-1]
        auc.annotate(f"{value:.4f}", (second, value), xytext=(-6, 8), textcoords="offset points", ha="right")
    auc.margins(y=0.12)  # space for the figure above the last point
    auc.set_ylabel("AUC (last 10 s)")
    auc.legend(loc="lower right", frameon=False)


def _title(summary: Mapping[str, Any]) -> str:
    def some(count: Any, word: str) -> str:
        return f"{int(count or 0):,} {word}{'' if count == 1 else 's'}"

    line = (
        f"{some(summary['servers'], 'server')}, {some(summary['trainers'], 'trainer')}, "
        f"{some(summary['examples'] - summary['examples_before'], 'example')} in {summary['seconds']:,.1f} s"
    )
    line += f", AUC {short(summary['auc'])}" if summary["auc"] is not None else ""
    return f"{summary['job']}\n{line}" if summary["job"] else line
