"""Clicks, a row each, become sessions that a model trains and ranks on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from pslib.data.convert.sessions import SessionsReport, convert_sessions
from pslib.errors import ConfigurationError, DataError
from rec_models import GRU4Rec

TIMES = [5, 3, 9, 1, 4, 9, 2]
CLICKS = {"session": ["b", "a", "b", "c", "a", "b", "d"], "item": [7, 1, 8, 5, 2, 9, None], "time": TIMES}
NAMES = {"session": "session", "item": "item", "time": "time"}


def made(folder: Path, clicks: dict[str, Any], **options: Any) -> tuple[SessionsReport, list[list[Any]]]:
    pq.write_table(pa.table(clicks), folder / "clicks.parquet")
    out = folder / "sessions.parquet"
    report = convert_sessions(folder / "clicks.parquet", out, **NAMES, overwrite=True, **options)
    return report, pq.read_table(out)["items"].to_pylist()


def test_a_session_has_its_items_by_time_and_sessions_are_in_the_order_of_their_ends(tmp_path: Path) -> None:
    report, sessions = made(tmp_path, CLICKS)
    assert sessions == [[1, 2], [7, 8, 9]]
    assert (report.clicks, report.without_value, report.sessions, report.short) == (7, 1, 2, 1)
    assert "left out: 1 session of one click" in report.lines()
    assert "left out: 1 click without a session, item or time" in report.lines()


@pytest.mark.parametrize(
    "times",
    [
        pa.array(TIMES, pa.float32()),
        pa.array(TIMES, pa.timestamp("ns", "Europe/Berlin")),
        pa.array(TIMES, pa.int32()).cast(pa.date32()),
        [f"2024-05-01 12:30:0{one}" for one in TIMES],
        [f"2024-05-01T12:30:0{one}Z" for one in TIMES],
    ],
    ids=["float", "timestamp", "date", "text", "text with a zone"],
)
def test_times_of_any_type_put_clicks_in_order(tmp_path: Path, times: Any) -> None:
    assert made(tmp_path, CLICKS | {"time": times})[1] == [[1, 2], [7, 8, 9]]


def test_the_sessions_that_end_last_are_tested_on(tmp_path: Path) -> None:
    number = np.arange(60)
    clicks = {"session": number % 20, "item": [f"i{one}" for one in number], "time": number}
    report, sessions = made(tmp_path, clicks, test_out=tmp_path / "test.parquet", test_share=0.1)
    assert (len(sessions), report.test_sessions) == (18, 2)
    assert pq.read_table(tmp_path / "test.parquet").to_pylist() == [
        {"prefix": ["i18", "i38"], "target": "i58"},
        {"prefix": ["i19", "i39"], "target": "i59"},
    ]


def test_files_of_text_are_one_log_whatever_their_ids_look_like(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name, items in (("a", ["7", "8"]), ("b", ["x", "7"])):
        frame = pd.DataFrame({"session": [1, 2], "item": items, "time": [ord(name), ord(name)]})
        frame.to_csv(tmp_path / "logs" / f"{name}.csv", index=False)
    convert_sessions(tmp_path / "logs", tmp_path / "out", **NAMES)
    assert pq.read_table(tmp_path / "out")["items"].to_pylist() == [["7", "x"], ["8", "7"]]


@pytest.mark.parametrize(
    ("clicks", "told"),
    [
        ({"session": [1], "item": [1], "at": [1]}, "clicks.parquet: no column 'time'; the file has session"),
        ({"session": [1], "items": [1], "time": [1]}, "no column 'item'; did you mean 'items'"),
        (
            {"session": [1, 2], "item": [1, 2], "time": [1, 2]},
            "'session': expected sessions of two clicks or",
        ),
        ({"session": [1], "item": [0.5], "time": [1]}, "column 'item': a sparse column is .* got double"),
        ({"session": [1], "item": [1], "time": [[1]]}, "column 'time': a time is a timestamp, .* got list"),
        (
            {"session": [1], "item": [1], "time": ["soon"]},
            "column 'time': expected texts of times, got others",
        ),
    ],
)
def test_what_makes_no_sessions_is_told(tmp_path: Path, clicks: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        made(tmp_path, clicks)
    assert not (tmp_path / "sessions.parquet").exists()


def test_times_of_several_types_are_told(tmp_path: Path) -> None:
    for name, time in (("a", 1), ("b", "2024-05-01 12:30")):
        (tmp_path / f"{name}.csv").write_text(f"session,item,time\n1,7,{time}\n")
    with pytest.raises(DataError, match="column 'time': expected times of one type in all files; "):
        convert_sessions(tmp_path, tmp_path / "out", **NAMES)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="test_share: expected a number above 0 and below 1, got 1"):
        made(tmp_path, CLICKS, test_out=tmp_path / "test.parquet", test_share=1)
    with pytest.raises(DataError, match="expected sessions to train on and to test on, got 1 session"):
        made(
            tmp_path, {"session": [1, 1], "item": [1, 2], "time": [1, 2]}, test_out=tmp_path / "test.parquet"
        )


def test_a_log_of_clicks_trains_a_model_of_sessions(tmp_path: Path) -> None:
    """Items follow each other in a ring."""
    start, step = np.repeat(np.arange(400) * 7 % 20, 4), np.tile(np.arange(4), 400)
    clicks = pd.DataFrame({"user": np.repeat(np.arange(400), 4), "item": (start + step) % 20, "ts": step})
    clicks.sample(frac=1, random_state=1).to_csv(tmp_path / "clicks.csv", index=False)
    names = ["--session", "user", "--item", "item", "--time", "ts"]
    places = [str(tmp_path / name) for name in ("clicks.csv", "sessions.parquet", "test.parquet")]
    assert main(["convert", "sessions", *places[:2], "--test-out", places[2], *names]) == 0
    with pslib.connect() as cluster:
        model = GRU4Rec(pslib.Schema(ragged=["items"]), dim=8, negatives=16)
        trainer = pslib.Trainer(model, cluster, batch_rows=32, progress=False)
        trainer.fit(places[1], epochs=12)
        found = trainer.rank(places[2], places[1], at=(1,))
    assert found.examples == 40
    assert found.recall[1] > 0.9  # by chance 0.05
