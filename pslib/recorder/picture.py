"""Chart of a run: loss, quality and speed over time, of all its launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import Any

from pslib.recorder.records import EVALUATION, PROGRESS, Record
from pslib.text import counted, short

_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57", "#8a5fbf")
_FEW_POINTS = 30
_FIGURE = {"auc": "", "recall": " Recall", "ndcg": " NDCG"}
_CHARACTER = 0.009
"""Width of a character of a label of a mark, as a share of the panel's."""
_MARKS_MAX = 12
"""Most epochs that are marked: of more, every n-th one."""


def picture(launches: Sequence[Sequence[Record]], summary: Mapping[str, Any] | None = None) -> Any:
    """Plot loss, quality (if there is any) and speed over seconds, as a matplotlib figure.

    A notebook shows it below the cell that returns it.

    Parameters
    ----------
    launches : sequence of sequence of Record
        Records of each launch of the run; the last launch is the one that ends now.
    summary : mapping or None
        Content of ``summary.json``, for the title; None: no title.
    """
    from matplotlib.figure import Figure  # without pyplot: no global state, no display needed
    from matplotlib.ticker import FuncFormatter

    parts = _one_after_the_other(launches)
    progress = [[one for one in part if one.event == PROGRESS] for part in parts]
    evaluations = _known_once(one for part in parts for one in part if one.event == EVALUATION)
    clicks = any(one.auc is not None for one in [*evaluations, *(one for part in progress for one in part)])
    rankings = [one for one in evaluations if one.k is not None]

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            self.savefig(file := BytesIO(), format="png")
            return file.getvalue()

    figure = Shown(figsize=(9, 9), dpi=110, layout="constrained")
    panels = figure.subplots(3 if clicks or rankings else 2, 1, sharex=True)
    loss, speed = panels[0], panels[-1]
    if summary is not None:
        figure.suptitle(_title(parts, evaluations, summary), fontsize=12)
    _draw_lines(loss, progress, "loss", _COLOURS[0])
    loss.set_ylabel(f"{'log ' if clicks else ''}loss (last second)")
    if clicks:
        _draw_lines(panels[1], progress, "auc", _COLOURS[0], label="before training on it")
        _draw_points(panels[1], evaluations, ("auc",))
        panels[1].set_ylabel("AUC (last 10 s)")
    elif rankings:
        best = max(one.k for one in rankings if one.k is not None)
        _draw_points(panels[1], [one for one in rankings if one.k == best], ("recall", "ndcg"), "o-")
        panels[1].set_ylabel(f"Recall and NDCG at {best}")
    _draw_lines(speed, progress, "examples_per_s", _COLOURS[2], filled=True)
    speed.set_ylabel("examples/s")
    speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    speed.set_xlabel(f"seconds since the start{', of all launches' * (len(parts) > 1)}")
    _draw_marks(panels, parts, progress)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _one_after_the_other(launches: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Return the records of each launch, their seconds counted from the start of the first one."""
    parts, began_s = [], 0.0
    for launch in launches:
        parts.append([replace(one, seconds=began_s + one.seconds) for one in launch])
        began_s = max((one.seconds for one in parts[-1]), default=began_s)
    return parts


def _known_once(evaluations: Iterable[Record]) -> list[Record]:
    """Drop evaluations that a later launch repeats: it knows those of the training that it goes on from."""
    known: dict[Record, Record] = {}
    for one in evaluations:
        known.setdefault(replace(one, seconds=0.0, examples=0, loss=None), one)
    return list(known.values())


def _draw_lines(
    axes: Any,
    progress: Sequence[Sequence[Record]],
    column: str,
    colour: str,
    *,
    label: str = "",
    filled: bool = False,
) -> None:
    """Draw a column of progress records, a line for each launch, across records without a value."""
    dot = "o" if sum(map(len, progress)) <= _FEW_POINTS else ""  # too few points for a line
    for part in progress:
        known = [one for one in part if getattr(one, column) is not None]
        seconds, values = [one.seconds for one in known], [getattr(one, column) for one in known]
        axes.plot(seconds, values, color=colour, lw=1.6, marker=dot, ms=3, label=label)
        label = ""  # one entry in the legend
        if filled:
            axes.fill_between(seconds, values, color=colour, alpha=0.25, lw=0)


def _draw_points(axes: Any, evaluations: Sequence[Record], columns: Sequence[str], mark: str = "o") -> None:
    """Draw columns of evaluations, in a colour for each name and column; the legend has the last values."""
    series: dict[str, list[tuple[float, float]]] = {}
    for column in columns:
        for one in evaluations:
            if (value := getattr(one, column)) is not None:
                series.setdefault(f"{_named(one)}{_FIGURE[column]}", []).append((one.seconds, value))
    for number, (name, found) in enumerate(series.items(), 1):
        colour, label = _COLOURS[number % len(_COLOURS)], f"{name} {found[-1][1]:.4f}"
        axes.plot(*zip(*found, strict=True), mark, color=colour, ms=6, lw=1.2, label=label)
    axes.margins(y=0.1)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)


def _named(evaluation: Record) -> str:
    return " of ".join(part for part in (evaluation.name, evaluation.label) if part)


def _draw_marks(
    panels: Sequence[Any], parts: Sequence[Sequence[Record]], progress: Sequence[Sequence[Record]]
) -> None:
    """Mark ends of epochs and beginnings of later launches; a stream has no epochs."""
    ends: dict[int, float] = {}
    if not any(one.files is not None for part in parts for one in part):
        for before, after in pairwise(one for part in progress for one in part):
            if after.epoch > before.epoch:
                ends.setdefault(after.epoch, after.seconds)
    every = -(-len(ends) // _MARKS_MAX)
    marks = [(ends[epoch], f"epoch {epoch}", ":") for epoch in ends if epoch % every == 0]
    marks += [(part[0].seconds, "resumed", "--") for part in parts[1:] if part]
    low, high = panels[0].get_xlim()
    ends_at: list[float] = []  # of the last label of each line
    for second, label, style in sorted(marks):
        begins = second - len(label) * _CHARACTER * (high - low)
        line = next((number for number, end in enumerate(ends_at) if end <= begins), len(ends_at))
        ends_at[line : line + 1] = [second]
        for axes in panels:
            axes.axvline(second, color="0.45", lw=0.9, ls=style, zorder=0)
        panels[0].annotate(
            label,
            (second, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-2, 2 + 10 * line),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color="0.35",
        )


def _title(
    parts: Sequence[Sequence[Record]], evaluations: Sequence[Record], summary: Mapping[str, Any]
) -> str:
    names = [str(summary[name]) for name in ("job", "model") if summary[name]]
    examples = summary["examples"] - (summary["examples_before"] if len(parts) == 1 else 0)
    seconds = summary["seconds"] + max((one.seconds for part in parts[:-1] for one in part), default=0.0)
    line = (
        f"{counted(int(summary['servers'] or 0), 'server')}, "
        f"{counted(int(summary['trainers'] or 0), 'trainer')}, {counted(int(examples), 'example')} in "
        f"{f'{len(parts)} launches of ' if len(parts) > 1 else ''}{seconds:,.1f} s"
    )
    ranked = next((one for one in reversed(evaluations) if one.recall is not None), None)
    if summary["auc"] is not None:
        line += f", AUC {short(summary['auc'])}"
    elif ranked is not None:
        line += f", Recall@{ranked.k} {short(ranked.recall)}"
    return "\n".join([*([": ".join(dict.fromkeys(names))] if names else []), line])
