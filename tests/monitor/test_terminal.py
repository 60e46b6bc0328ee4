"""The screen of ``pslib top``, of recorded states at several sizes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pslib.monitor.terminal import ago, number, screen, seconds, shares, size
from tests.support.recorded_state import recorded_samples, recorded_state

SMALL = """\
clicks  training  epoch 1/3  ETA 22:55  2:10 since its start  deepfm 5f3a91c0
  8% ━━━╸                                       7,500,000 of 90,000,000 examples
checkpoint 10 s ago (9.3 GB in 14 s)  replay 810.0 MB  coordinator heard 0 s ago
60,419 examples/s  ██████████████  loss 0.4684  AUC 0.7654  calibration 0.977
staleness 1.0, most 4  ack 2.9 ms, p99 28 ms  4.5 MB under way  16.2 MB/s out
26.0 MB/s in  1,831 pushes  imbalance rows 1.03, bytes 1.02, requests 1.11
trainer (2) state examples/s read batch rows compute push heard
0           live      29,713   8%    3%  12%     73%   5% 0.4 s
1           live      28,861   7%    3%   6%     80%   3% 0.0 s
server (2) state   rows    bytes limit requests/s queue    p99 busy heard
0          live  5.45 M 937.4 MB   11%      1,001     1 3.1 ms  31% 0.8 s
1          live  5.48 M 942.2 MB   11%      1,083     0 3.4 ms  40% 0.7 s
events (8)
10 s ago   checkpoint saved, 9.3 GB in 14 s
70 s ago   checkpoint saved, 9.3 GB in 14 s
81 s ago   server 0 is back, with its log
85 s ago   server 0 is lost: silent for 3.0 s
2:08 ago   trainer 1 joined
2:08 ago   trainer 0 joined
2:09 ago   server 1 joined
2:09 ago   server 0 joined
"""


def drawn(state: dict[str, Any], width: int, height: int | None, *, colors: bool = False) -> str:
    """The screen as text, without the blanks at the ends of its lines."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 500, force_terminal=colors)
    console.print(screen(state, recorded_samples(state["run"]["seconds"] or 0), width, height))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def unknown(value: Any) -> Any:
    """A state whose numbers are not known."""
    if isinstance(value, dict):
        return {
            key: unknown(one) if key not in ("rank", "now_s", "at_s", "number") else one
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [unknown(one) for one in value]
    return value if isinstance(value, str | bool) else None


def test_a_small_terminal_has_the_whole_run() -> None:
    assert drawn(recorded_state(2, 2, 130), 80, 24) == SMALL


@pytest.mark.parametrize(("servers", "trainers"), [(0, 0), (1, 1), (2, 4), (16, 12), (128, 64)])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60), (60, 15), (20, 6), (300, 400)])
def test_it_fits_any_terminal_and_counts_what_is_cut(
    servers: int, trainers: int, width: int, height: int
) -> None:
    lines = drawn(recorded_state(servers, trainers, 400), width, height).splitlines()
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    rests = [int(line.split()[1]) for line in lines if line.startswith("… ")]
    rows = [line for line in lines if line.split()[:1] and line.split()[0].isdigit() and " live " in line]
    if height >= 24:
        assert len(rows) + sum(rests) == servers + trainers
    if height == 400:
        assert rests == []


def test_nothing_is_cut_without_a_height() -> None:
    text = drawn(recorded_state(128, 64, 400), 100, None)
    assert "more" not in text
    assert text.count(" live ") == 192


def test_processes_in_trouble_are_shown_where_others_are_cut() -> None:
    state = recorded_state(64, 64, 400)
    lost = next(one for one in state["processes"] if (one["role"], one["rank"]) == ("server", 50))
    lost |= {"state": "lost", "silent_s": 7.0}
    silent = next(one for one in state["processes"] if (one["role"], one["rank"]) == ("server", 40))
    silent["silent_s"] = 150.0
    lines = drawn(state, 80, 24).splitlines()
    assert [line.split()[:2] for line in lines if " lost " in line] == [["50", "lost"]]
    assert [line.split()[0] for line in lines if line.endswith(" 2:30")] == ["40"]
    assert [line.split()[0] for line in lines if " slow; a pull" in line] == ["63"]


def test_the_largest_server_is_marked_when_the_load_is_uneven() -> None:
    state = recorded_state(3, 1, 400)
    state["imbalance"]["rows"] = 1.8
    state["servers"][1]["rows"] *= 3
    lines = drawn(state, 120, 30).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("rows 1.80 of the mean")] == ["1"]
    assert any("imbalance rows 1.80, bytes 1.02" in line for line in lines)


def test_the_end_of_a_run_and_its_error_are_shown() -> None:
    state = recorded_state(1, 1, 100)
    state["run"] |= {"state": "failed", "eta_s": None, "error": "server 0 is lost: \x1b[2J\nkilled"}
    text = drawn(state, 80, 24)
    assert text.startswith("clicks  failed  epoch ")
    assert "\nerror: server 0 is lost: \\x1b[2J\\nkilled\n" in text


def test_what_is_not_known_is_a_dash_and_a_stream_has_windows() -> None:
    state = unknown(recorded_state(2, 3, 130))
    state["run"]["checkpoint"] = None
    lines = drawn(state, 80, 24).splitlines()
    assert lines[0].startswith("clicks  training  ETA -")
    assert "no checkpoint yet" in lines[2]
    assert lines[3].startswith("- examples/s")
    assert next(line.split()[:4] for line in lines if " live " in line) == ["0", "live", "-", "-"]
    stream = recorded_state(1, 1, 130)
    stream["run"] |= {"epochs": 0, "epoch": 3, "examples_total": 0}
    assert "window 4" in drawn(stream, 80, 24).splitlines()[0]
    assert "7,500,000 of" not in drawn(stream, 80, 24)


def test_texts_of_processes_can_not_steer_the_terminal() -> None:
    state = recorded_state(1, 1, 130)
    state["run"] |= {"name": "[bold]a\x1b[31m", "model": "\u202eb"}
    state["events"][-1]["text"] = "[red]x[/red] \x1b]0;title\x07\r\n"
    state["processes"][-1]["waits"] = ["\x9b2J"]
    text = drawn(state, 120, 30)
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    assert "[bold]a" in text
    assert "[red]x[/red]" in text


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in drawn(recorded_state(1, 1, 130), 80, 24, colors=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in drawn(recorded_state(1, 1, 130), 80, 24, colors=True)


@pytest.mark.parametrize(
    ("wanted", "rows", "given"),
    [
        ([2, 2, 50], 20, [2, 2, 16]),
        ([64, 128, 50], 21, [9, 9, 3]),
        ([64, 2, 50], 21, [16, 2, 3]),
        ([64, 128, 1], 3, [1, 1, 1]),
        ([0, 0, 0], 20, [0, 0, 0]),
        ([5, 5, 5], 0, [0, 0, 0]),
    ],
)
def test_rows_are_shared_by_what_is_wanted(wanted: list[int], rows: int, given: list[int]) -> None:
    assert shares(wanted, rows) == given


def test_numbers_have_units() -> None:
    assert [number(one) for one in (None, 0, 999_999, 1_234_567, 2.5e9)] == [
        "-",
        "0",
        "999,999",
        "1.23 M",
        "2.50 G",
    ]
    assert [size(one) for one in (None, 512, 1_500, 9.3e9, 2e12)] == [
        "-",
        "512 B",
        "1.5 kB",
        "9.3 GB",
        "2.0 TB",
    ]
    assert [seconds(one) for one in (None, 0.0031, 0.02, 2.25, 14.2, 123)] == [
        "-",
        "3.1 ms",
        "20 ms",
        "2.2 s",
        "14 s",
        "2:03",
    ]
    assert [ago(one) for one in (None, -0.1, 12.4, 3_700)] == [
        "at an unknown time",
        "0 s ago",
        "12 s ago",
        "1:01:40 ago",
    ]
