"""The table of messy data in docs/guide/data.md: each of its rows is tried here, in three ways."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import pslib
from launch.cli.main import main
from launch.job.job import read_job
from launch.job.preflight import check_data
from pslib.data import LeaseReader, Order, ParquetData, value_checks
from pslib.data.inspect.check import check
from pslib.data.value_checks import LABEL
from pslib.errors import DataError
from pslib.schema import Schema
from pslib.text import one_line
from rec_models import build
from tests.support.data.messy_data import CASES, ROWS, SCHEMA, damage, one_file, two_files
from tests.support.processes.command import ROOT, Command

PAGE = (ROOT / "docs" / "guide" / "data.md").read_text(encoding="utf-8").split("## Messy data")[1]
TOLD = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)[1:])
REFUSED = re.compile(r"refused (before training|when read): `(.*)`")
COLUMNS = Schema.from_dict(SCHEMA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def matches(text: str, told: str, *, whole: bool = False) -> bool:
    """Return True if a text holds (``whole``: is) what the page tells, in which ``...`` is any text."""
    pattern = ".*".join(map(re.escape, told.split("...")))
    return bool(re.fullmatch(pattern, text) if whole else re.search(pattern, text))


def read(folder: Path) -> int:
    """Read all batches; the number of examples."""
    data = ParquetData(folder, COLUMNS)
    order = Order(0, [group.rows for group in data.row_groups], 4)
    reader = LeaseReader(data, COLUMNS, order, 4)
    return sum(len(batch) for lease in range(order.leases(0)) for batch in reader.batches(0, lease))


def job_file(folder: Path) -> Path:
    data = {"train": str(folder), "schema": SCHEMA}
    job = {"data": data, "model": {"name": "fm", "dim": 2}, "training": {"batch_rows": 4}, "out": "out"}
    path = folder.parent / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def test_the_page_tells_of_every_case_and_of_no_other() -> None:
    assert list(TOLD) == list(CASES)
    assert [
        text for text in TOLD.values() if not REFUSED.fullmatch(text) and not text.startswith("read")
    ] == []


@pytest.mark.parametrize("case", CASES)
def test_data_is_read_or_refused_as_the_page_says(folder: Path, case: str) -> None:
    CASES[case](folder)
    refused = REFUSED.fullmatch(TOLD[case])
    if not refused:
        rows = sum(pq.ParquetFile(file).metadata.num_rows for file in folder.iterdir())
        assert read(folder) == rows >= ROWS
        return
    if refused[1] == "before training":
        with pytest.raises(DataError) as caught:
            ParquetData(folder, COLUMNS)
    else:
        ParquetData(folder, COLUMNS)
        with pytest.raises(DataError) as caught:
            read(folder)
    (line,) = caught.value.problems
    assert matches(line.replace(str(folder), "data"), refused[2], whole=True)


@pytest.mark.parametrize("case", CASES)
def test_a_look_at_the_data_finds_what_would_stop_a_run(
    folder: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[case](folder)
    check(folder)  # without a schema nothing is wrong with values, and nothing may be raised
    report = check(folder, COLUMNS)
    refused = REFUSED.fullmatch(TOLD[case])
    problems = [line.replace(str(folder), "data") for line in report.problems]
    if case == "damaged pages":  # in other words, since nothing can have changed meanwhile
        assert "b.parquet: row 4 (from 0) or later in row group 1, column 'user': the file is" in problems[0]
    else:
        assert len(problems) == bool(refused)
        assert not refused or matches(problems[0], refused[2], whole=True)
    code = main(["data", "check", str(folder), "--config", str(job_file(folder))])
    said = capsys.readouterr()
    assert code == (64 if refused else 0)
    assert not refused or problems[0] in (said.out + said.err).replace(str(folder), "data")


@pytest.mark.parametrize("case", CASES)
def test_a_job_is_refused_in_one_line_before_anything_starts(
    folder: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[case](folder)
    refused = REFUSED.fullmatch(TOLD[case])
    job = job_file(folder)
    if not refused or refused[1] == "when read":
        if case != "a label between 0 and 1":  # of the first row group of each file labels are read
            check_data(read_job(job))
        return
    assert main(["train", str(job)]) == 64
    said = capsys.readouterr().err.replace(str(folder), "data")
    assert matches(said, f"pslib: {refused[2]}\n", whole=True)
    assert not (folder.parent / "out").exists()


def test_files_that_differ_in_types_and_nulls_train_together(folder: Path) -> None:
    CASES["no row in any file"](folder)
    (folder / "a.parquet").rename(folder / "none.parquet")
    cases = ["empty lists, null lists, lists with nulls", "an empty string", "a dictionary column",
             "large_string", "string_view with a null", "booleans as labels", "many files of one row",
             "a sparse column without any value"]  # fmt: skip
    for number, case in enumerate(cases):
        (folder / str(number)).mkdir()
        CASES[case](folder / str(number))
    with pslib.connect() as cluster:
        model = build("fm", COLUMNS, {"dim": 2})
        trainer = pslib.Trainer(model, cluster, batch_rows=4, progress=False)
        trainer.fit(folder)
        assert trainer.evaluate(folder).examples == len(cases) * ROWS


def test_a_file_that_is_damaged_inside_ends_a_run_in_words(
    folder: Path, start: Callable[..., Command]
) -> None:
    CASES["damaged pages"](folder)
    command = start("train", job_file(folder))
    assert command.finish(120) == 64, command.output
    refused = REFUSED.fullmatch(TOLD["damaged pages"])
    assert refused
    assert matches(command.output.replace(str(folder), "data"), refused[2])


def test_damaged_labels_of_a_first_row_group_are_told_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_files()(folder)
    damage(folder / "b.parquet", 0, pq.read_schema(folder / "b.parquet").names.index("click"))
    assert main(["train", str(job_file(folder))]) == 64
    said = capsys.readouterr().err.replace(str(folder), "data")
    told = REFUSED.fullmatch(TOLD["damaged pages"])
    assert told
    wanted = told[2].replace("row group 1", "row group 0").replace("'user'", "'click'")
    assert matches(said, f"pslib: {wanted}\n", whole=True)
    assert not (folder.parent / "out").exists()


def test_every_bad_column_of_every_file_is_told_at_once(folder: Path) -> None:
    two_files(click=[1, 0, 1, 0, 2, 1], price=[1.0] * (ROWS - 1) + [float("inf")])(folder)
    with pytest.raises(DataError) as caught:
        ParquetData(folder, COLUMNS)
    assert [re.sub(r".*(column '\w+').*", r"\1", line) for line in caught.value.problems] == [
        "column 'price'",
        "column 'click'",
    ]


def test_statistics_alone_refuse_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some writers give bounds that no value reaches: the values decide."""
    one_file()(folder)
    wrong = replace(LABEL, in_statistics=lambda statistics: True)
    monkeypatch.setattr(value_checks, "LABEL", wrong)
    assert read(folder) == ROWS


def test_an_error_of_many_lines_is_told_in_one_that_a_terminal_can_show() -> None:
    assert one_line(OSError("what type: \x0f\nand more")) == "what type: ?"
    assert one_line(OSError("")) == "OSError"
