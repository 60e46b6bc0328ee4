"""The first screen of the README is the first hour: its script runs on the CSV that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.first_hour.clicks_csv import COLUMNS, write_clicks
from tests.first_hour.first_screen import COMMANDS, README, SCRIPT, SHOWN_ROWS


def test_the_readme_is_read_in_minutes_and_its_first_screen_has_few_commands_and_a_short_script() -> None:
    assert len(README.splitlines()) <= 150
    assert [words[:2] for words in COMMANDS] == [
        ["pslib", command] for command in ("describe", "train", "predict", "nearest", "vectors")
    ]
    assert len([line for line in SCRIPT.splitlines() if line.strip()]) <= 12


def test_the_rows_that_it_shows_are_those_of_the_csv(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.csv", tmp_path / "new.csv", rows=10, new_rows=1)
    lines = (tmp_path / "clicks.csv").read_text(encoding="utf-8").splitlines()
    assert SHOWN_ROWS[0] == lines[0] == ",".join(COLUMNS)
    assert all(line.count(",") == len(COLUMNS) - 1 for line in SHOWN_ROWS)


def test_its_script_trains_on_a_frame_and_the_model_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    write_clicks(tmp_path / "clicks.csv", tmp_path / "new.csv", rows=8000)
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPT, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert len(re.findall(r"auc=0\.\d+", said)) == 2
    assert "value" in said
    assert (tmp_path / "runs" / "frame" / "checkpoint" / "manifest.json").is_file()
