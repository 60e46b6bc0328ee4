"""State of a run as one screen of a terminal, for ``pslib top``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pslib.monitor.run_state import FULL_SHARE, IMBALANCED, SILENT_S
from pslib.recorder.display import duration_text
from pslib.text import epoch_text, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
"""Levels of a curve."""

EVENTS_MAX = 50
"""Events of a screen without a height."""

WIDE = 100
"""Columns from which on tables are less dense."""

EVENT_ROWS = 3
"""Events that a small screen keeps room for."""

STATES = {"live": "green", "lost": "bold red", "left": "dim", "absent": "yellow"}
ENDS = {"running": "green", "ended": "cyan", "failed": "bold red"}
TROUBLE = ("lost", "fenced", "failed")
"""Kinds of events that are marked."""

TIMES = ("read", "wait_batch", "wait_rows", "compute", "push")
"""Stages of a trainer, as its columns."""


def screen(
    state: Mapping[str, Any], samples: Mapping[str, Any], width: int, height: int | None
) -> RenderableType:
    """Return the state of a run as at most ``height`` lines of ``width`` columns.

    Parameters
    ----------
    state, samples : mapping
        As those of `pslib.monitor.sources`.
    width : int
    height : int or None
        None: nothing is cut.
    """
    from rich.console import Group

    trainers, servers = (_of_role(state, role) for role in ("trainer", "server"))
    own = {one["rank"]: one for one in state["servers"]}
    events = state["events"][::-1][:EVENTS_MAX]
    head = _head(state, samples, width)
    rooms = [len(trainers), len(servers), len(events)]
    if height is not None:
        head = head[: max(1, height)]
        rooms = shares(rooms, max(0, height - len(head) - sum(map(bool, rooms))))
    tables = [_trainers(_cut(trainers, rooms[0]), len(trainers))] if rooms[0] else []
    tables += [_servers(_cut(servers, rooms[1]), own, len(servers), state["imbalance"])] if rooms[1] else []
    tables += [_events(events[: rooms[2]], state["now_s"], len(state["events"]))] if rooms[2] else []
    for table in tables:
        table.padding = (0, 2 if width >= WIDE else 1, 0, 0)
    return Group(*head, *tables)


def shares(wanted: Sequence[int], rows: int) -> list[int]:
    """Share rows out: events keep a few, trainers and servers get alike, and others have what one leaves."""
    kept = min(wanted[-1], EVENT_ROWS, rows)
    given = [0] * (len(wanted) - 1) + [kept]
    left = rows - kept
    for index in sorted(range(len(wanted) - 1), key=lambda one: wanted[one]):
        open_ = sum(1 for one in range(len(wanted) - 1) if wanted[one] and not given[one])
        given[index] = min(wanted[index], left // open_) if open_ else 0
        left -= given[index]
    given[-1] = min(wanted[-1], kept + left)
    return given


def _of_role(state: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    return [one for one in state["processes"] if one["role"] == role]


def _cut(processes: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """Return the processes that a table of so many rows has: those in trouble before others, by rank."""
    if len(processes) <= rows:
        return processes
    worst = sorted(processes, key=lambda one: (not _is_in_trouble(one), one["rank"]))
    return sorted(worst[: max(0, rows - 1)], key=lambda one: int(one["rank"]))


def _is_in_trouble(process: Mapping[str, Any]) -> bool:
    lost = process["state"] in ("lost", "absent") or (process["silent_s"] or 0.0) > SILENT_S
    return bool(lost or process["straggler"] or process["waits"])


def _head(state: Mapping[str, Any], samples: Mapping[str, Any], width: int) -> list[Text | Table]:
    """Return lines on the run: state and time, progress, checkpoint, error, rates, traffic."""
    run, traffic = state["run"], state["traffic"]
    doing = run["state"] if run["state"] != "running" or not run["phase"] else run["phase"]
    first = [
        (printable(run["name"] or "run"), "bold"),
        (printable(doing), ENDS.get(run["state"], "")),
        (_epoch(run), ""),
        (f"ETA {duration_text(run['eta_s'])}", "" if run["state"] == "running" else "dim"),
        (f"{duration_text(run['seconds'])} since its start", "dim"),
        (printable(" ".join(str(one) for one in (run["model"], run["cluster_id"]) if one)), "dim"),
    ]
    lines: list[Text | Table] = [*_lines(first, width), _progress(run), *_lines(_saved(state), width)]
    if run["error"]:
        lines += _lines([(f"error: {printable(run['error'])}", "bold red")], width)
    curve = _curve(samples, max(0, min(60, width - 66)))
    rates = [
        (f"{number(run['examples_per_s'])} examples/s", "bold"),
        (curve, "cyan"),
        (f"loss {_decimals(run['loss'])}", ""),
        (f"AUC {_decimals(run['auc'])}", ""),
        (f"calibration {_decimals(run['calibration'], 3)}", ""),
    ]
    mean, most = traffic["staleness_mean"], traffic["staleness_max"]
    p50_s, p99_s = traffic["ack_p50_s"], traffic["ack_p99_s"]
    units = {"bytes_in_flight": " under way", "sent_per_s": "/s out", "received_per_s": "/s in"}
    moved = [
        ("" if mean is None else f"staleness {mean:.1f}, most {number(most)}", ""),
        ("" if p50_s is None else f"ack {seconds(p50_s)}, p99 {seconds(p99_s)}", ""),
        *_bytes(traffic, units),
        _ledger(state["ledger"]),
        *_imbalance(state["imbalance"]),
    ]
    return [*lines, *_lines(rates, width), *_lines(moved, width)]


def _bytes(traffic: Mapping[str, Any], units: Mapping[str, str]) -> list[tuple[str, str]]:
    """Describe the figures in bytes that are known."""
    return [(f"{size(traffic[name])}{unit}", "") for name, unit in units.items() if traffic[name] is not None]


def _imbalance(imbalance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the largest server over the mean."""
    known = {name: value for name, value in imbalance.items() if value is not None}
    text = ", ".join(f"{name} {value:.2f}" for name, value in known.items())
    bad = any(value >= IMBALANCED for value in known.values())
    return [(f"imbalance {text}", "bold red" if bad else "")] if known else []


def _epoch(run: Mapping[str, Any]) -> str:
    if run["epoch"] is None:
        return ""
    if run["epochs"]:
        return str(epoch_text(run["epoch"], run["epochs"]))
    return f"window {run['epoch'] + 1}" if run["epoch"] else ""


def _saved(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the last checkpoint, what a restart would replay, and the coordinator."""
    saved, log = state["run"]["checkpoint"], state["log"]
    parts = [("no checkpoint yet", "dim")]
    if saved:
        took = f" in {seconds(saved['took_s'])}" if saved["took_s"] is not None else ""
        what = f" ({size(saved['bytes'])}{took})" if saved["bytes"] is not None else took
        parts = [(f"checkpoint {ago(saved['age_s'])}{what}", "")]
    if log["replay_bytes"]:
        parts.append((f"replay {size(log['replay_bytes'])}", ""))
    for one in _of_role(state, "coordinator"):
        silent = one["silent_s"] or 0.0
        ill = silent > SILENT_S or one["state"] == "lost"
        heard = f"heard {ago(one['silent_s'])}" if one["state"] == "live" else one["state"]
        parts.append((f"coordinator {heard}", "bold red" if ill else "dim"))
    return parts


def _ledger(ledger: Mapping[str, Any]) -> tuple[str, str]:
    missing = ledger["missing"] or 0
    lost = f"{missing:,} pushes missing" if missing else f"{number(ledger['applied'])} pushes"
    if ledger["applied"] is None:
        return "", ""
    return lost, "bold red" if missing else "dim"


def _progress(run: Mapping[str, Any]) -> Table:
    """Return a bar and the examples; a stream has no end and no bar."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done, total = run["examples"] or 0, run["examples_total"] or 0
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    if total:
        bar = ProgressBar(total, min(done, total))
        grid.add_row(f"{done / total:4.0%}", bar, f"{done:,} of {total:,} examples")
    else:
        grid.add_row(f"{done:,} examples", "", "")
    return grid


def _trainers(shown: Sequence[Mapping[str, Any]], count: int) -> Table:
    names = ("read", "batch", "rows", "compute", "push")
    table = _table(f"trainer ({count})", "state", "examples/s", *names, "heard", "")
    for one in shown:
        times = [_percent((one["time"] or {}).get(name)) for name in TIMES]
        straggler = ["slow"] if one["straggler"] else []
        note = _text("; ".join([*straggler, *map(printable, one["waits"])]), "yellow")
        rate = _text(number(one["examples_per_s"]))
        table.add_row(str(one["rank"]), _state(one), rate, *times, _silence(one), note)
    return _with_rest(table, count - len(shown))


def _servers(
    shown: Sequence[Mapping[str, Any]],
    own: Mapping[int, Mapping[str, Any]],
    count: int,
    imbalance: Mapping[str, Any],
) -> Table:
    columns = ("state", "rows", "bytes", "limit", "requests/s", "queue", "p99", "busy", "heard", "")
    table = _table(f"server ({count})", *columns)
    told = [
        f"{name} {value:.2f} of the mean"
        for name, value in imbalance.items()
        if value is not None and value >= IMBALANCED
    ]
    worst = {
        name: max((one[key] or 0 for one in own.values()), default=0)
        for name, key in (("rows", "rows"), ("bytes", "memory_bytes"), ("requests", "requests_per_s"))
    }
    for one in shown:
        figures = own.get(one["rank"], {})
        get: Callable[[str], Any] = figures.get
        used = get("memory_bytes"), get("memory_limit_bytes")
        share = used[0] / used[1] if used[0] is not None and used[1] else None
        keys = {"rows": get("rows"), "bytes": get("memory_bytes"), "requests": get("requests_per_s")}
        most = [text for text in told if keys[text.split(" ")[0]] == worst[text.split(" ")[0]]]
        table.add_row(
            str(one["rank"]),
            _state(one),
            _text(number(get("rows"))),
            _text(size(get("memory_bytes"))),
            _percent(share, "bold red" if (share or 0.0) >= FULL_SHARE else ""),
            _text(number(get("requests_per_s"))),
            _text(number(get("queue"))),
            _text(seconds(get("request_p99_s"))),
            _percent((one["time"] or {}).get("busy")),
            _silence(one),
            _text("; ".join([*most, *map(printable, one["waits"])]), "yellow"),
        )
    return _with_rest(table, count - len(shown))


def _events(shown: Sequence[Mapping[str, Any]], now_s: float, count: int) -> Table:
    """Return the newest events, the last one first."""
    from rich.table import Table

    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    table.add_column(f"events ({count})", no_wrap=True)
    table.add_column("", no_wrap=True, ratio=1, overflow="ellipsis")
    for one in shown:
        style = "red" if one["kind"] in TROUBLE else ""
        table.add_row(_text(ago(now_s - one["at_s"]), "dim"), _text(printable(one["text"]), style))
    return table


def _table(first: str, *columns: str) -> Table:
    """Return an empty table of numbers, whose second column has words, and whose last is a note."""
    from rich.table import Table

    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for index, name in enumerate(columns):
        note = index == len(columns) - 1
        table.add_column(
            name,
            no_wrap=True,
            justify="left" if index == 0 or note else "right",
            ratio=1 if note else None,
            overflow="ellipsis",
        )
    return table


def _with_rest(table: Table, rest: int) -> Table:
    if rest:
        table.add_row(_text(f"… {rest} more", "dim"))
    return table


def _state(process: Mapping[str, Any]) -> Text:
    return _text(process["state"], STATES.get(process["state"], ""))


def _silence(process: Mapping[str, Any]) -> Text:
    silent_s = process["silent_s"]
    text = "-" if silent_s is None else f"{silent_s:.1f} s" if silent_s < 120 else duration_text(silent_s)
    return _text(text, "bold red" if (silent_s or 0.0) > SILENT_S else "dim")


def _percent(share: float | None, style: str = "") -> Text:
    return _text("-" if share is None else f"{share:.0%}", style)


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _lines(parts: Iterable[tuple[str, str]], width: int) -> list[Text]:
    """Return parts in as many lines as they need; a part that is too long for one is cut."""
    lines: list[Text] = []
    for text, style in parts:
        if not text:
            continue
        part = _text(text, style)
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(_text("").append_text(part))
    return lines


def _curve(samples: Mapping[str, Any], width: int) -> str:
    """Return the newest examples per second as a curve, from 0 to their largest."""
    if "examples_per_s" not in samples["columns"] or not width:
        return ""
    column = samples["columns"].index("examples_per_s")
    values = [row[column] or 0.0 for row in samples["rows"][-width:]]
    top = max(values, default=0.0)
    return "".join(BARS[min(7, int(8 * max(0.0, value) / top))] for value in values) if top else ""


def number(value: float | None) -> str:
    """Format a number: with separators, from a million on in millions."""
    if value is None:
        return "-"
    if abs(value) >= 1e9:
        return f"{value / 1e9:,.2f} G"
    return f"{value / 1e6:.2f} M" if abs(value) >= 1e6 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Format bytes."""
    if value is None:
        return "-"
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= of:
            return f"{value / of:.1f} {unit}"
    return f"{value:.0f} B"


def seconds(value: float | None) -> str:
    """Format a duration: below a second in milliseconds, from two minutes on as ``2:03``."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1e3:.{0 if value >= 0.01 else 1}f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s" if value < 120 else duration_text(value)


def ago(value: float | None) -> str:
    """Format the time since something."""
    if value is None:
        return "at an unknown time"
    return f"{max(0.0, value):.0f} s ago" if value < 120 else f"{duration_text(value)} ago"


def _decimals(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
