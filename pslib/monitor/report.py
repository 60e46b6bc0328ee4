"""Report of runs: one HTML file with charts, figures, settings and what differs between them.

The file has no script and loads nothing, so that it opens offline and in any viewer. All texts of a run, from
names of columns to errors, are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pslib.clock import utc_now_text, utc_text
from pslib.metrics.paired import Difference
from pslib.recorder.display import duration_text
from pslib.recorder.records import EVALUATION, Record
from pslib.recorder.svg_charts import COLOURS, chart, panels
from pslib.text import counted, short

EVALUATIONS_SHOWN = 40
"""Most evaluations of a run in its table: the charts have all."""
EVENTS_SHOWN = 500
"""Most events and checkpoints of a run."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """Files of one run, as read.

    Attributes
    ----------
    name : str
        Differs from that of the other runs of the report.
    folder : str
    state : str
        For people: ``done``, ``failed``, ``running``.
    records : sequence of Record
        Of all launches, in order.
    summary : mapping
        ``summary.json``; empty while the run goes on.
    settings : mapping of str to str
        See `pslib.recorder.environment.flat_settings`; empty if unknown.
    monitor : mapping
        ``state`` of ``monitor.json``; empty without one.
    of_script : bool
        Whether the settings are those of a script's trainer: a part of what a job file has.
    """

    name: str
    folder: str
    state: str
    records: Sequence[Record]
    summary: Mapping[str, Any]
    settings: Mapping[str, str]
    monitor: Mapping[str, Any]
    of_script: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """AUC and log loss of a run less those of the first one, on the same examples."""

    name: str
    auc: Difference
    logloss: Difference
    examples: int

    @property
    def verdict(self) -> str:
        """Say in a few words what the interval of the AUC allows."""
        if self.auc.low > 0:
            return "better"
        return "worse" if self.auc.high < 0 else "no difference shown"


def page(
    runs: Sequence[ReportedRun], comparisons: Sequence[Comparison] = (), notes: Sequence[str] = ()
) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    runs : sequence of ReportedRun
        At least one; the first one is what others are compared with.
    comparisons : sequence of Comparison
    notes : sequence of str
        Why a comparison is missing, and how to get it.
    """
    title = (
        " and ".join(one.name for one in runs)
        if len(runs) < 3
        else f"{runs[0].name} and {len(runs) - 1} more"
    )
    sections = [
        ("Difference of AUC", _compared(runs, comparisons, notes)),
        ("Differences", _differing(runs) if len(runs) > 1 else ""),
        ("Summary", _summary(runs)),
        ("Charts", _charts(runs)),
        ("Evaluations", _evaluations(runs)),
        ("Checkpoints", _listed(runs, "checkpoints", _CHECKPOINT)),
        ("Events", _listed(runs, "events", _EVENT)),
        ("Settings", _settings(runs)),
        ("Environment", _table(runs, _texts([_environment(one) for one in runs]))),
    ]
    body = "".join(f"<section><h2>{escape(name)}</h2>{text}</section>" for name, text in sections if text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(f'pslib report: {title}')}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{_legend(runs)}</p></header><main>{body}</main>"
        f"<footer>pslib report, {escape(utc_now_text())}</footer></body></html>\n"
    )


def differing_settings(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """Return the settings that are not the same in all runs: a value of each run, ``-`` without one.

    ``out`` and what is below it, such as places of checkpoints, differ in any two runs and are left out. Of
    a script and a job file only those count that both have.
    """
    found = {}
    names = dict.fromkeys(name for one in runs for name in one.settings)
    known = [one.settings for one in runs if one.settings]
    if len({one.of_script for one in runs if one.settings}) > 1:
        names = {name: None for name in names if all(name in one for one in known)}
    for name in names:
        values = [one.settings.get(name, "-") for one in runs]
        own = all(value.startswith(one.folder) for value, one in zip(values, runs, strict=True))
        if len(set(values)) > 1 and name != "out" and not own:
            found[name] = values
    return found


# --- sections


def _legend(runs: Sequence[ReportedRun]) -> str:
    """Return a line on each run: its colour, name, state and folder."""
    told = []
    for number, one in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        error = one.summary.get("error") or _mapping(one.monitor.get("run")).get("error")
        said = f': <b class="error">{escape(str(error))}</b>' if error else ""
        told.append(
            f'<span class="run"><i style="background:{colour}"></i><b>{escape(one.name)}</b> '
            f"{escape(one.state)}{said} <small>{escape(one.folder)}</small></span>"
        )
    return "".join(told)


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _speed(value: Any) -> str:
    return f"{value:,.0f}/s"


def _megabytes(value: Any) -> str:
    return f"{value / 1e6:,.1f} MB"


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("model", "model", str),
    ("AUC", "auc", short),
    ("log loss", "logloss", short),
    ("calibration", "calibration", short),
    ("AUC before training on it", "auc_progressive", short),
    ("examples", "examples", _number),
    ("of these before this run", "examples_before", _number),
    ("epochs", "epochs", _number),
    ("time", "seconds", duration_text),
    ("speed", "examples_per_s", _speed),
    ("servers", "servers", _number),
    ("trainers", "trainers", _number),
    ("rows", "rows", _number),
    ("parameters", "parameters", _number),
    ("memory of the tables", "memory_bytes", _megabytes),
    ("staleness, mean", "staleness_mean", _plain),
    ("sent", "bytes_sent", _megabytes),
    ("received", "bytes_received", _megabytes),
    ("seed", "seed", str),
    ("exit code", "exit_code", str),
)
"""Figures of the summary: what people call it, its key, its format."""


def _figures_of(run: ReportedRun) -> dict[str, Any]:
    """Return the summary; of a run that goes on, what its last record says."""
    if run.summary or not run.records:
        return dict(run.summary)
    last = run.records[-1]
    return {"examples": last.examples, "epochs": last.epoch, "seconds": last.seconds}


def _summary(runs: Sequence[ReportedRun]) -> str:
    figures = [_figures_of(one) for one in runs]
    rows = {"state": [one.state for one in runs]}
    for label, key, told in _FIGURES:
        known = [one.get(key) for one in figures]
        if any(value is not None for value in known):
            rows[label] = [_told(told, value) for value in known]
    for key in ("recall", "mrr", "ndcg"):  # by k, of models that rank items
        by_k = [_mapping(one.get(key)) for one in figures]
        for k in dict.fromkeys(k for one in by_k for k in one):
            rows[f"{key} at {k}"] = [_told(short, one.get(k)) for one in by_k]
    return _table(runs, rows, marks=len(runs) > 1)


def _compared(runs: Sequence[ReportedRun], comparisons: Sequence[Comparison], notes: Sequence[str]) -> str:
    text = ""
    if comparisons:
        head = ["", "AUC", "95 % interval", "log loss", "95 % interval", "examples", ""]
        rows = [
            [
                f"{one.name} less {runs[0].name}",
                f"{one.auc.value:+.5f}",
                f"{one.auc.low:+.5f} to {one.auc.high:+.5f}",
                f"{one.logloss.value:+.5f}",
                f"{one.logloss.low:+.5f} to {one.logloss.high:+.5f}",
                _number(one.examples),
                one.verdict,
            ]
            for one in comparisons
        ]
        text = _rows(head, rows) + (
            "<p>Both models predict the same examples. The interval holds the difference in 95 of 100 draws "
            "of these examples with replacement (paired bootstrap).</p>"
        )
    return text + "".join(f"<p>{escape(note)}</p>" for note in notes)


def _differing(runs: Sequence[ReportedRun]) -> str:
    found = {
        "Settings": differing_settings(runs),
        "Environment": {
            name: values
            for name, values in _texts([_environment(one) for one in runs]).items()
            if len(set(values)) > 1
        },
    }
    unknown = [one.name for one in runs if not one.settings]
    text = "".join(f"<h3>{name}</h3>{_table(runs, rows)}" for name, rows in found.items() if rows)
    if not found["Settings"] and not unknown:
        text = f"<p>No setting differs.</p>{text}"
    if unknown:
        text += f"<p>Settings are not recorded: {escape(', '.join(unknown))}.</p>"
    return text


def _charts(runs: Sequence[ReportedRun]) -> str:
    drawn = panels([(one.name, one.records) for one in runs])
    if not drawn:
        return "<p>There is no record of the training yet.</p>"
    parts = (f"<figure>{chart(title, curves)}</figure>" for title, curves in drawn.items())
    return (
        f'<div class="charts">{"".join(parts)}</div><p>Lines: the training, each example before it was '
        "learnt; AUC and calibration over the last ten records. Dots: evaluations.</p>"
    )


_OF_EVALUATION = (
    *("name", "label", "epoch", "files", "examples", "auc", "logloss", "calibration"),
    *("k", "recall", "mrr", "ndcg", "evaluated"),
)


def _evaluations(runs: Sequence[ReportedRun]) -> str:
    rows, dropped = [], 0
    for run in runs:
        own = [one for one in run.records if one.event == EVALUATION]
        dropped += max(0, len(own) - EVALUATIONS_SHOWN)
        rows += [(run.name, one) for one in own[-EVALUATIONS_SHOWN:]]
    names = [name for name in _OF_EVALUATION if any(getattr(one, name) is not None for _, one in rows)]
    cells = [[run, *(_record_cell(getattr(one, name)) for name in names)] for run, one in rows]
    note = f"<p>{counted(dropped, 'earlier one')} are in metrics.jsonl.</p>" if dropped else ""
    return _rows(["run", *names], cells) + note if cells else ""


def _record_cell(value: Any) -> str:
    if value is None:
        return "-"
    return (
        short(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )


_CHECKPOINT: Mapping[str, Callable[[Any], str]] = {
    "at_s": utc_text, "kind": str, "path": str, "bytes": _megabytes,
    "took_s": lambda value: f"{value:.2f} s", "pause_s": lambda value: f"{value * 1e3:,.1f} ms",
}  # fmt: skip
_EVENT: Mapping[str, Callable[[Any], str]] = {
    "at_s": utc_text, "kind": str, "role": str, "rank": str, "text": str
}  # fmt: skip


def _listed(runs: Sequence[ReportedRun], what: str, columns: Mapping[str, Callable[[Any], str]]) -> str:
    """Return a list of the monitor's state as a table, the newest last."""
    rows = [
        [run.name, *(_told(told, one.get(name)) for name, told in columns.items())]
        for run in runs
        for one in _list(run.monitor.get(what))[-EVENTS_SHOWN:]
        if isinstance(one, Mapping)
    ]
    head = ["run", *("UTC" if name == "at_s" else name.removesuffix("_s") for name in columns)]
    return _rows(head, rows) if rows else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a part of a file; empty if it is something else."""
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _told(told: Callable[[Any], str], value: Any) -> str:
    """Format a value of a file; one of another type as it is."""
    try:
        return "-" if value is None else told(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return str(value)


def _settings(runs: Sequence[ReportedRun]) -> str:
    known = _texts([one.settings for one in runs])
    if not known:
        return "<p>They are not recorded: a script under a launcher has its own.</p>"
    differ = differing_settings(runs)
    rows = ([name, *values] for name, values in known.items())
    table = _rows(["", *(one.name for one in runs)], rows, [name in differ for name in known])
    return f"<details><summary>{counted(len(known), 'setting')}</summary>{table}</details>"


def _environment(run: ReportedRun) -> dict[str, str]:
    """Return versions and machine; of a run that goes on its version alone, where the monitor knows it."""
    known = run.summary.get("environment")
    if not isinstance(known, Mapping):
        pslib = _mapping(run.monitor.get("run")).get("pslib")
        return {"sparse-pslib": str(pslib)} if pslib else {}
    told = {"memory_bytes": lambda value: f"{value / 1e9:,.1f} GB"}
    return {str(name): _told(told.get(name, str), value) for name, value in known.items()}


# --- tables


def _texts(columns: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return a row of values for each name that any column has."""
    names = dict.fromkeys(name for one in columns for name in one)
    return {name: [one.get(name, "-") for one in columns] for name in names}


def _table(runs: Sequence[ReportedRun], rows: Mapping[str, Sequence[str]], marks: bool = False) -> str:
    """Return a table with a column for each run; with ``marks`` rows whose values differ are marked."""
    if not rows:
        return ""
    differ = [marks and len(set(values)) > 1 for values in rows.values()]
    return _rows(["", *(one.name for one in runs)], ([name, *rows[name]] for name in rows), differ)


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    return f'<div class="wide"><table>{"".join(_lines_of(head, rows, marked))}</table></div>'


def _lines_of(head: Sequence[str], rows: Iterable[Sequence[str]], marked: Sequence[bool]) -> Iterator[str]:
    titles = "".join(f"<th scope=col>{escape(name)}</th>" for name in head)
    yield f"<thead><tr>{titles}</tr></thead><tbody>"
    for number, (first, *cells) in enumerate(rows):
        kind = ' class="differs"' if number < len(marked) and marked[number] else ""
        text = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<tr{kind}><th scope=row>{escape(first)}</th>{text}</tr>"
    yield "</tbody>"


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: the file's own styles and nothing else."""
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--soft:#5a6474;--line:#dfe3e9;--page:#fff;--mark:#fff4d6;
--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--line:#333b47;--page:#14181e;
--mark:#3a3212;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:24px 20px 48px;background:var(--page);color:var(--ink);
font:14px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:22px;margin:0 0 8px;overflow-wrap:anywhere}h2{font-size:16px;margin:32px 0 8px}
h3{font-size:13px;margin:16px 0 4px;color:var(--soft)}
p,small,footer{color:var(--soft)}footer{margin-top:40px;font-size:12px}
.run{display:block;overflow-wrap:anywhere}
.run i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:8px}
.run b{color:var(--ink)}.run .error{color:var(--bad)}
.charts{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:8px}
svg{display:block;width:100%}
.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:320px}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td{max-width:60ch;overflow-wrap:break-word}
thead th{color:var(--soft);font-weight:600}tbody th{font-weight:400;color:var(--soft)}
.differs{background:var(--mark)}summary{cursor:pointer}
@media print{body{max-width:none}details{display:block}}
"""
