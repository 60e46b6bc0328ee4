"""History of a training: a bounded number of records, as an Arrow table and in a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from pslib.recorder import history
from pslib.recorder.history import History
from pslib.recorder.records import COLUMNS, EVALUATION, PROGRESS, Record, read_records


def progress(seconds: float, **more: object) -> Record:
    return Record(event=PROGRESS, seconds=seconds, epoch=0, examples=int(10 * seconds), **more)  # type: ignore[arg-type]


def evaluation(seconds: float, **more: object) -> Record:
    return Record(event=EVALUATION, seconds=seconds, epoch=1, examples=5, **more)  # type: ignore[arg-type]


def history_of(*records: Record) -> History:
    made = History()
    for one in records:
        made.add(one)
    return made


def test_a_history_is_a_table_with_a_column_for_each_figure_and_null_where_one_is_undefined() -> None:
    table = history_of(progress(1, loss=0.5), evaluation(2, name="valid", auc=0.7, positives=3)).table
    assert table.column_names == list(COLUMNS)
    assert table.column("loss").to_pylist() == [0.5, None]
    assert table.column("auc").to_pylist() == [None, 0.7]
    assert {str(kind) for kind in table.schema.types} == {"string", "int64", "double"}
    assert History().table.schema == table.schema


def test_libraries_that_read_arrow_take_it_as_it_is() -> None:
    made = history_of(progress(1, loss=0.5))
    assert pa.table(made) == made.table
    assert made.to_pandas()["loss"].tolist() == [0.5]


def test_a_frame_has_the_columns_that_a_record_has_and_whole_numbers_stay_whole() -> None:
    frame = history_of(progress(1, loss=0.5), evaluation(2, name="valid", auc=0.7, positives=3)).to_pandas()
    names = ["event", "seconds", "epoch", "examples", "loss", "auc", "name", "positives"]
    assert list(frame.columns) == names
    assert str(frame["positives"].tolist()) == "[<NA>, 3]"
    assert frame["examples"].dtype == "int64"
    assert list(History().to_pandas().columns) == list(COLUMNS)


def test_an_undefined_figure_is_none() -> None:
    assert progress(1, loss=float("nan"), auc=float("inf")).plain()["loss"] is None


def test_records_come_in_the_order_of_time_and_evaluations_after_the_progress_of_the_same_moment() -> None:
    made = history_of(evaluation(1), progress(1), progress(2), evaluation(1.5))
    assert [(one.event, one.seconds) for one in made.records] == [
        (PROGRESS, 1), (EVALUATION, 1), (EVALUATION, 1.5), (PROGRESS, 2)
    ]  # fmt: skip


def test_a_full_history_drops_every_other_record_and_doubles_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "RECORDS_MAX", 4)
    made = History()
    for second in range(1, 6):
        made.add(progress(second))
    assert [one.seconds for one in made.records] == [1, 3, 5]
    assert made.every_s == 2


def test_evaluations_are_bounded_apart_from_progress_and_leave_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "RECORDS_MAX", 4)
    made = history_of(progress(0), *[evaluation(second) for second in range(1, 8)])
    assert [one.seconds for one in made.records] == [0, 1, 5, 7]
    assert made.every_s == 1


def test_a_notebook_shows_the_last_records_with_the_columns_that_they_have() -> None:
    made = history_of(*[progress(second, loss=0.25) for second in range(12)], evaluation(12, name="<valid>"))
    page = made._repr_html_()
    assert "the last 10 of 13 records" in page
    assert re.findall("<th>(.*?)</th>", page) == ["event", "seconds", "epoch", "examples", "loss", "name"]
    assert page.count("<tr>") == 11
    assert "<td>0.2500</td>" in page
    assert "&lt;valid&gt;" in page
    assert repr(made).startswith("<History of 13 records: event, seconds, ")


def test_records_are_read_again_and_lines_that_a_crash_cut_are_left_out(tmp_path: Path) -> None:
    records = [progress(1, loss=0.5), evaluation(2, name="valid", auc=0.7)]
    file = tmp_path / "metrics.jsonl"
    lines = [json.dumps(one.plain() | {"rows": 7}) for one in records]
    old = json.dumps({"event": "evaluation", "seconds": 1.0, "result": {"auc": 0.5}})
    file.write_text("\n".join([*lines, old, lines[0][:20]]))
    assert list(read_records(file)) == records


@pytest.mark.parametrize("broken", [None, "x", [], True, 10**400, 1e999, {}], ids=lambda one: repr(one)[:8])
@pytest.mark.parametrize("column", ["seconds", "examples", "loss"])
def test_a_line_with_a_column_of_another_type_is_left_out(
    tmp_path: Path, column: str, broken: object
) -> None:
    file, whole = tmp_path / "metrics.jsonl", progress(1, loss=0.5)
    file.write_text(
        "\n".join(json.dumps(one) for one in (whole.plain() | {column: broken}, whole.plain(), 5))
    )
    found = list(read_records(file))
    assert found[-1] == whole
    assert len(found) == (2 if column == "loss" and broken in (None, 1e999) else 1)


def test_the_page_of_metrics_explains_every_column() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"
    table = page.read_text(encoding="utf-8").split("## Records")[1].split("\n## ")[0]
    first_cells = " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(COLUMNS)
