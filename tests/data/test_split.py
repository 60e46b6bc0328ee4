"""A split holds out the same rows in every process, and each row is in one part."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.data.arrow_data import open_data
from pslib.data.item_catalog import record_batches
from pslib.data.split import NO_TIME, boundary_of
from pslib.errors import ConfigurationError, DataError
from pslib.schema import DenseField, Schema

ROWS = 10_000
SCHEMA = Schema(label="y", sparse=["row"])


def table(**more: object) -> pa.Table:
    choice = np.random.default_rng(1)
    times = pa.array(choice.integers(0, 3000, ROWS), pa.timestamp("ms"))
    return pa.table(
        {"y": choice.integers(0, 2, ROWS), "row": np.arange(ROWS), "x": np.ones(ROWS), "time": times, **more}
    )


def written(folder, rows: pa.Table, files: int = 2):
    """Files of some row groups each, whose rows are those of a table in order."""
    each = -(-rows.num_rows // files)
    folder.mkdir(exist_ok=True)
    for number in range(files):
        pq.write_table(rows.slice(number * each, each), folder / f"{number}.parquet", row_group_size=1700)
    return folder


def rows_in(part: object, schema: Schema = SCHEMA) -> list[int]:
    data = open_data(part, schema)
    rows = np.concatenate([batch.column("row").to_numpy() for batch in record_batches(data)]).tolist()
    assert data.rows == len(rows) == sum(group.rows for group in data.row_groups)
    return rows


@pytest.mark.parametrize("by", [None, "time"])
def test_each_row_is_in_one_part_and_a_frame_is_split_like_its_files(tmp_path, by):
    folder = written(tmp_path / "clicks", table())
    train, test = map(rows_in, pslib.split(folder, 0.1, by=by))
    assert sorted(train + test) == list(range(ROWS))
    assert abs(len(test) - ROWS * 0.1) < 100
    if by is None:
        folder = written(tmp_path / "file", table(), files=1)
        train, test = map(rows_in, pslib.split(folder, 0.1))
    assert [train, test] == [rows_in(part) for part in pslib.split(table(), 0.1, by=by)]
    assert [train, test] == [rows_in(part) for part in pslib.split(table().to_pandas(), 0.1, by=by)]


def test_the_last_rows_by_time_are_tested_on_and_rows_without_a_time_are_not():
    times = np.random.default_rng(2).permutation(ROWS)
    absent = times % 5 == 0
    column = pa.array(times, pa.timestamp("us"), mask=absent)
    train, test = map(rows_in, pslib.split(table(time=column), 0.2, by="time"))
    assert len(test) == 1600  # of those that have a time
    assert not absent[test].any()
    assert times[test].min() > times[[row for row in train if not absent[row]]].max()


@pytest.mark.parametrize(
    "of",
    [
        lambda days: pa.array(days, pa.int32()).cast(pa.date32()),
        lambda days: pa.array(days, pa.timestamp("s", "Europe/Berlin")),
        lambda days: pa.array(days, pa.uint32()),
        lambda days: pa.array([str(datetime.date(2024, 1, 1) + datetime.timedelta(int(n))) for n in days]),
        lambda days: pa.array([f"2024-01-01T00:{n // 60:02}:{n % 60:02}Z" for n in days]).dictionary_encode(),
        lambda days: pa.array([f"2024-01-01 00:{n // 60:02}:{n % 60:02}" for n in days], pa.string_view()),
    ],
    ids=[
        "dates",
        "timestamps of a zone",
        "whole numbers",
        "texts of dates",
        "texts of a zone",
        "views of texts",
    ],
)
def test_times_of_any_type_split_alike(of):
    days = np.random.default_rng(3).integers(0, 1000, ROWS)
    _, test = pslib.split(table(time=of(days)), 0.1, by="time")
    _, same = pslib.split(table(time=days), 0.1, by="time")
    assert rows_in(test) == rows_in(same)


@pytest.mark.parametrize("zone", ["", "Z"])
def test_a_date_that_does_not_exist_is_named(zone):
    times = [f"2024-02-{day:02}T12:00:00{zone}" for day in (1, 7, 31, 30)]
    _, test = pslib.split(table(time=times * (ROWS // 4)), 0.2, by="time")
    with pytest.raises(DataError, match=rf"column 'time': expected times as .*, got '{times[2]}'"):
        rows_in(test)


def test_rows_that_are_appended_leave_the_earlier_ones_in_their_part():
    (_, test), (_, later) = (pslib.split(rows, 0.1) for rows in (table().slice(0, 7000), table()))
    assert rows_in(test) == [row for row in rows_in(later) if row < 7000]


def test_files_that_are_added_before_others_leave_the_rows_of_these_in_their_part(tmp_path):
    folder = written(tmp_path / "clicks", table().slice(3000))
    _, test = pslib.split(folder, 0.1)
    before = rows_in(test)
    pq.write_table(table().slice(0, 3000), folder / "-first.parquet")
    assert rows_in(pslib.split(folder, 0.1)[1])[-len(before) :] == before


@pytest.mark.parametrize("numbers_first", [True, False])
def test_whole_numbers_in_one_file_and_times_in_another_are_refused_by_name(tmp_path, numbers_first):
    days = np.arange(ROWS // 2) % 1000
    times, numbers = pa.array(days, pa.int32()).cast(pa.date32()), pa.array(days)
    half = table().slice(0, ROWS // 2).drop_columns("time")
    first, second = (numbers, times) if numbers_first else (times, numbers)
    pq.write_table(half.append_column("time", first), tmp_path / "a.parquet")
    pq.write_table(half.append_column("time", second), tmp_path / "b.parquet")
    said = ["whole numbers", "times"] if numbers_first else ["times", "whole numbers"]
    line = rf"b.parquet: column 'time': expected {said[0]} to split by, as in \S+a.parquet, got {said[1]} \("
    with pytest.raises(DataError, match=line):
        rows_in(pslib.split(tmp_path, by="time")[1])


def test_a_file_without_any_time_is_trained_on(tmp_path):
    folder = written(tmp_path / "clicks", table())
    half = table(time=pa.nulls(ROWS)).slice(0, ROWS // 2)
    pq.write_table(half, folder / "0.parquet")
    assert min(rows_in(pslib.split(folder, by="time")[1])) >= ROWS // 2
    (folder / "2.csv").write_text("y,row,x,time\n0,-1,1,\n1,-2,1,\n")
    files = [folder / "1.parquet", folder / "2.csv"]
    assert set(rows_in(pslib.split(files, by="time")[0])) > {-1, -2}


def test_a_boundary_is_the_time_whose_later_rows_are_nearest_to_the_share():
    choice = np.random.default_rng(4)
    for number in range(200):
        reach = 2**62 if number % 2 else int(choice.integers(2, 40))
        times, share = choice.integers(-reach, reach, choice.integers(2, 2000)), choice.uniform(0.01, 0.99)
        times[0] = NO_TIME
        known = times[1:]
        wanted = max(1, round(share * known.size))
        boundary = boundary_of(lambda: iter(np.array_split(times, 3)), share)  # noqa: B023
        counts = [int((known >= one).sum()) for one in np.unique(known)[1:]]
        if counts:
            assert boundary is not None
            assert abs(int((known >= boundary).sum()) - wanted) == min(abs(one - wanted) for one in counts)
        else:
            assert boundary is None


@pytest.mark.parametrize("bad", [0, 4321, 9876])
def test_a_bad_value_is_named_by_its_row_and_only_when_its_part_is_read(tmp_path, bad):
    values = np.ones(ROWS)
    values[bad] = np.inf
    file = tmp_path / "bad.parquet"
    pq.write_table(table(x=values), file, row_group_size=1700, write_statistics=False)
    for source in (file, table(x=values)):
        said = [_problem(part) for part in pslib.split(source, 0.5)]
        (line,) = filter(None, said)
        assert f"row {bad} (from 0) in row group " in line
        assert line.endswith("column 'x': a dense value is finite in float32, got inf; " + ADVICE)


ADVICE = "write a null where it is unknown, or a number that is in reach"


def _problem(part: object) -> str:
    try:
        _decoded(part)
    except DataError as error:
        return str(error)
    return ""


def _decoded(part: object) -> list[object]:
    from pslib.trainer.retrieval.towers import whole_batches

    return list(whole_batches(open_data(part, Schema(label="y", dense=[DenseField("x")])), 1000))


def test_parts_and_shares_have_fingerprints_of_their_own(tmp_path):
    for source in (written(tmp_path / "clicks", table()), table()):
        parts = [*pslib.split(source, 0.1), *pslib.split(source, 0.2), *pslib.split(source, 0.1, by="time")]
        assert len({open_data(one, SCHEMA).fingerprint for one in [source, *parts]}) == 7
        again = pslib.split(source, 0.1)
        assert [open_data(one, SCHEMA).fingerprint for one in again] == [
            open_data(one, SCHEMA).fingerprint for one in parts[:2]
        ]


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("tim", r"no column 'tim'; did you mean 'time'\?"),
        (
            "x",
            "times to split by are timestamps, dates, whole numbers or texts of times, got double",
        ),
        ("word", "column 'word': expected times as 2024-05-01 12:00:00, got '"),
        ("day", "column 'day' has no later rows to hold out: expected at least two times; leave test_by out"),
    ],
)
def test_a_column_without_times_is_one_line(tmp_path, by, line):
    rows = table(word=["a word"] * ROWS, day=np.full(ROWS, 7))
    for source in (written(tmp_path / "clicks", rows), rows):
        with pytest.raises(DataError, match=line) as error:
            open_data(pslib.split(source, by=by)[0], SCHEMA)
        assert len(error.value.problems) == 1


def test_a_share_that_leaves_a_part_empty_or_is_none_is_one_line():
    with pytest.raises(
        DataError, match="test_share: expected rows to train on and rows to test on, got none"
    ):
        open_data(pslib.split(table().slice(0, 2), 0.001)[1], SCHEMA)
    for share in (0, 1, -0.1, 1.5):
        with pytest.raises(ConfigurationError, match="test_share: expected a number above 0 and below 1"):
            pslib.split(table(), share)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"test_share": "0.1"}, "test_share: expected a number, got '0.1'"),
        ({"by": ["time"]}, r"by: expected a text or None, got \['time'\]"),
    ],
)
def test_arguments_of_another_type_are_one_line(arguments, line):
    with pytest.raises(ConfigurationError, match=line):
        pslib.split(table(), **arguments)


def test_a_part_of_a_split_is_not_split_again():
    with pytest.raises(
        ConfigurationError, match="data: expected data to split, got a part of a split; split"
    ):
        pslib.split(pslib.split(table())[0])


def test_a_model_is_trained_on_one_part_and_tested_on_the_other(tmp_path):
    from rec_models import LR

    folder = written(tmp_path / "clicks", table())
    train, test = pslib.split(folder, 0.1, by="time")
    with pslib.connect(servers=1) as cluster:
        trainer = pslib.Trainer(LR(SCHEMA), cluster, batch_rows=512, out=None, progress=False)
        trainer.fit(train, epochs=2)
        result = trainer.evaluate(test, predictions=tmp_path / "scores")
        rows = cluster.client.stats()["rows"]
        trainer.save(tmp_path / "saved")
    held_out = rows_in(test)
    assert (rows, result.examples) == (ROWS - len(held_out), len(held_out))  # a row a key, a key a row
    loaded = pslib.load(tmp_path / "saved")
    assert loaded.evaluate(test).auc == pytest.approx(result.auc, abs=1e-9)
    assert len(loaded.predict(test)) == len(held_out)


def test_a_part_is_shown_by_what_it_is_and_not_by_its_rows():
    table = pa.table({"click": [0, 1] * 20, "at": list(range(40))})
    train, test = pslib.split(table, test_share=0.25, by="at")
    assert repr(train) == "<rows to train on of a Table: 0.25 held out, the last by at>"
    assert repr(test) == "<rows to test on of a Table: 0.25 held out, the last by at>"
