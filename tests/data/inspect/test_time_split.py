"""The split that `describe` proposes is by the time of the row's event, if a column has it."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.inspect.describe import describe

ROWS = 2000
TIMES = np.random.default_rng(6).permutation(ROWS) * 600
STAMPS = pa.array(1_700_000_000 + TIMES, pa.timestamp("s"))
DAYS = pa.array(19_000 + TIMES // 86_400, pa.int32()).cast(pa.date32())


def split_by(folder, **more: object):
    columns = {"click": TIMES % 7 // 6, "user": TIMES % 11, **more}
    pq.write_table(pa.table(columns), folder / "clicks.parquet")
    return describe(folder / "clicks.parquet")


@pytest.mark.parametrize(
    "times",
    [
        STAMPS,
        DAYS,
        pa.array(1_700_000_000 + TIMES),
        pa.array((1_700_000_000 + TIMES) * 1000),
        pa.array([str(datetime.date(2024, 1, 1) + datetime.timedelta(int(n))) for n in TIMES // 86_400]),
    ],
    ids=["timestamps", "dates", "seconds", "milliseconds", "texts"],
)
def test_the_last_tenth_by_a_column_of_times_is_held_out(tmp_path, times):
    found = split_by(tmp_path, event_time=times)
    assert (found.split.test_share, found.split.test_by) == (0.1, "event_time")
    assert abs(found.split.train_rows - 1800) <= 72  # whole days
    assert "event_time" not in found.schema.columns
    held = ROWS - found.split.train_rows
    assert found.held_out() == (
        f"the last rows by event_time, {held} of 2,000, are held out and evaluated after the training"
    )
    (choice,) = (one for one in found.choices if one.name == "event_time")
    assert (choice.role, choice.reason[:18]) == ("time", "the split is by it")


def test_without_times_rows_are_drawn_by_a_hash(tmp_path):
    found = split_by(tmp_path, price=TIMES / 7, phone=1_700_000_000 + TIMES % 13)
    assert found.split.test_by is None
    assert "rows drawn by a hash" in str(found.held_out())
    assert "phone" in found.schema.columns


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"birth_date": DAYS, "releasedAt": STAMPS}, None),
        ({"birth_date": DAYS, "day": DAYS}, "day"),
        ({"day": DAYS, "ts": STAMPS}, "ts"),
        ({"seen": STAMPS, "eventTime": DAYS}, "eventTime"),
        ({"ts": pa.array([None] * ROWS, pa.timestamp("s")), "day": DAYS}, "day"),
        ({"ts": pa.array([7] * ROWS, pa.timestamp("s"))}, None),
    ],
    ids=["of other events", "one of both", "a time before a date", "by name", "no value", "one time"],
)
def test_of_several_columns_the_one_of_the_rows_event_is_taken(tmp_path, more, by):
    assert split_by(tmp_path, **more).split.test_by == by


def test_a_share_of_0_and_a_handful_of_rows_hold_nothing_out(tmp_path):
    split_by(tmp_path, ts=STAMPS)
    found = describe(tmp_path / "clicks.parquet", test_share=0)
    assert (found.split.test_share, found.split.train_rows, found.held_out()) == (0, ROWS, None)
    pq.write_table(pa.table({"click": [0, 1] * 20, "user": [3, 5, 5, 4] * 10}), tmp_path / "few.parquet")
    assert describe(tmp_path / "few.parquet").held_out() is None
