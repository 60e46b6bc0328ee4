"""`pslib describe` proposes a schema that trains, and says why each column is what it is."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from launch.cli.main import main
from launch.job.job import read_job
from launch.job.paths import near
from pslib.data.dataset import ParquetData
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import DataError
from pslib.schema import DenseField, RaggedField, Schema, SparseField

ROWS = 2000


def columns(**more: object) -> dict[str, object]:
    choice = np.random.default_rng(1)
    return {
        "clicked": choice.integers(0, 2, ROWS),
        "user": choice.integers(0, 300, ROWS),
        "city": pa.array([f"city {number}" for number in choice.integers(0, 20, ROWS)]).dictionary_encode(),
        "price": choice.lognormal(4, 1, ROWS),
        "share": choice.random(ROWS),
        "tags": [[f"t{one}" for one in range(number % 4)] for number in range(ROWS)],
        "request": [f"id-{number}" for number in range(ROWS)],
        "version": np.full(ROWS, 3),
        "empty": pa.nulls(ROWS, pa.int64()),
        "when": pa.array(np.arange(ROWS), pa.timestamp("s")),
    } | more


HOURS = "a timestamp[ms]: {name: when_hour, of: when, take: hour} makes keys of it"


def written(path, **more: object):
    pq.write_table(pa.table(columns(**more)), path)
    return path


def test_each_column_gets_the_role_that_fits_it(tmp_path):
    found = describe(written(tmp_path / "data.parquet"))
    assert found.schema == Schema(
        label="clicked",
        dense=[DenseField("price", log1p=True), DenseField("share")],
        sparse=[SparseField("user"), SparseField("city")],
        ragged=[RaggedField("tags")],
    )
    reasons = {choice.name: choice.reason for choice in found.choices if choice.role in ("", "time")}
    assert reasons == {
        "request": reasons["request"],
        "version": "always the same value",
        "empty": "every value is missing",
        "when": "the split is by it; " + HOURS,
    }
    assert reasons["request"].endswith("different values in 2,000 rows: it names the row")


def test_columns_that_give_the_label_away_are_left_out_with_the_reason(tmp_path, capsys):
    label, choice = columns()["clicked"], np.random.default_rng(2)
    more = {
        "copy": label.astype(np.float32),
        "negated": pa.array([("yes", "no")[one] for one in label]).dictionary_encode(),
        "paid": label * 100.0 + choice.random(ROWS),
        "paid_at": [int(n) if one else None for n, one in enumerate(label)],
        "product": label * 50 + choice.integers(0, 50, ROWS),
        "nearly": np.where(np.arange(ROWS) == 7, 1 - label, label),
    }
    path = written(tmp_path / "data.parquet", **more)
    assert main(["describe", str(path), "--label", "clicked"]) == 0
    said = capsys.readouterr().out
    given = ["copy", "negated", "paid", "paid_at", "product"]
    assert f"warning: left out, for they give the label away: {', '.join(given)}; " in said
    assert re.search(
        r"copy +left out +it is a copy of the label: it gives the label away, in 2,000 rows", said
    )
    found = describe(path, "clicked")
    assert set(given).isdisjoint(found.schema.columns)
    assert {"user", "city", "price", "share", "nearly"} < set(found.schema.columns)
    assert "warning: AUC of the label by one column alone: nearly (" in said


def test_a_column_that_nearly_gives_the_label_away_stays_with_a_warning(tmp_path, capsys):
    label, choice = columns()["clicked"], np.random.default_rng(3)
    wrong = choice.random(ROWS) < 0.02
    more = {
        "page": pa.array([f"page {number}" for number in (label ^ wrong) + 2 * choice.integers(0, 9, ROWS)]),
        "dwell": np.where(label ^ wrong, 20.0, 3.0) + choice.random(ROWS),
        "early": np.where(label ^ wrong, -20.0, 3.0) + choice.random(ROWS),
        "weak": np.where(choice.random(ROWS) < 0.7, label, 1 - label),
    }
    path = written(tmp_path / "data.parquet", **more)
    assert main(["describe", str(path), "--label", "clicked"]) == 0
    (told,) = re.findall(r"warning: AUC of the label by one column alone: (.*?);", capsys.readouterr().out)
    assert re.findall(r"\w+ \(0\.9\d\d\)", told) == told.split(", ")
    assert [one.split()[0] for one in told.split(", ")] == ["page", "dwell", "early"]
    found = describe(path, "clicked")
    assert {"page", "dwell", "early", "weak"} < set(found.schema.columns)


def test_ids_that_are_floats_are_warned_of_by_their_names(tmp_path, capsys):
    ids = columns()["user"].astype(float)
    path = written(tmp_path / "data.parquet", user=ids, campaignId=ids, clicks_before=ids)
    assert main(["describe", str(path), "--label", "clicked"]) == 0
    said = capsys.readouterr().out
    assert "warning: user, campaignId: double, read as quantities; if they are ids, write them as int" in said


def test_a_training_of_too_few_steps_is_warned_of_with_settings_that_make_enough(tmp_path, capsys):
    path = str(written(tmp_path / "data.parquet"))
    assert main(["describe", path]) == 0
    assert (
        "warning: 1 epoch in batches of 4,096 takes 1 step, too few to learn from; "
        "training: {batch_rows: 128, epochs: 1} takes 15"  # of the rows that are not held out
    ) in capsys.readouterr().out


def test_a_copy_is_found_in_data_that_is_sorted_by_its_label(tmp_path):
    label = np.repeat([0, 1], ROWS // 2)
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table(columns(clicked=label, copy=label)), path, row_group_size=200)
    assert "copy" not in describe(path, "clicked").schema.columns


def test_few_rows_say_nothing_against_a_column(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(
        pa.table({"click": [0, 1, 1, 0], "user": [3, 5, 5, 3], "price": [0.5, 3.5, 4.5, 1.5]}), path
    )
    assert describe(path).schema.columns == ("click", "price", "user")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"clicked": np.arange(ROWS)}, "none holds 0 and 1 alone"),
        ({"clicked": np.arange(ROWS) / (ROWS - 1)}, "none holds 0 and 1 alone"),
        ({"clicked": pa.array([None, 0, 1, 1] * (ROWS // 4))}, "none holds 0 and 1 alone"),
        ({"other": np.arange(ROWS) % 2}, "several hold 0 and 1 alone (clicked, other)"),
    ],
)
def test_a_label_that_is_not_clear_is_asked_for(tmp_path, more, said):
    with pytest.raises(DataError) as error:
        describe(written(tmp_path / "data.parquet", **more))
    line, way = str(error.value).partition("; ")[::2]
    assert line == f"which column is the label? {said}: name it with --label"
    assert bool(way) == ("none" in said)
    assert not way or ", say which values count as 1, in pandas by frame['" in way


def test_a_column_that_is_called_click_is_the_label_beside_others_of_0_and_1(tmp_path):
    assert describe(written(tmp_path / "data.parquet", click=np.arange(ROWS) % 2)).schema.label == "click"


def test_names_may_all_differ_in_a_few_rows_and_dates_are_said_to_make_keys(tmp_path):
    days = pa.array(range(900), pa.int32()).cast(pa.date32())
    few = {"click": np.arange(900) % 2, "user": np.arange(900), "day": days}
    pq.write_table(pa.table(few), tmp_path / "few.parquet")
    found = describe(tmp_path / "few.parquet")
    assert found.schema.sparse == (SparseField("user"),)
    (day,) = [choice for choice in found.choices if choice.name == "day"]
    assert day.reason.endswith(
        "; a date32[day]: {name: day_weekday, of: day, take: weekday} makes keys of it"
    )


def test_two_lists_without_a_label_are_no_sessions(tmp_path):
    pq.write_table(pa.table({"items": SESSIONS, "words": SESSIONS}), tmp_path / "lists.parquet")
    with pytest.raises(DataError, match="which column is the label"):
        describe(tmp_path / "lists.parquet")


def test_data_without_rows_or_files_says_so(tmp_path):
    pq.write_table(pa.table(columns()).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"empty.parquet: expected at least one row, got none"):
        describe(tmp_path / "empty.parquet", "clicked")
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        describe(tmp_path / "nowhere")


def test_a_named_label_wins_and_a_wrong_name_is_told(tmp_path):
    path = written(tmp_path / "data.parquet", other=np.arange(ROWS) % 2)
    assert describe(path, "other").schema.label == "other"
    with pytest.raises(DataError, match=r"data.parquet: no column 'othr'; did you mean 'other'\?"):
        describe(path, "othr")


def test_a_column_with_two_types_is_told(tmp_path):
    for name in ("a", "a2"):
        written(tmp_path / f"{name}.parquet")
    written(tmp_path / "b.parquet", user=[str(number) for number in range(ROWS)])
    with pytest.raises(DataError, match=r"b.parquet: column 'user' is string, but int64 in .*a.parquet"):
        describe(tmp_path)


def test_a_column_of_whole_numbers_in_several_widths_is_one_column(tmp_path):
    written(tmp_path / "a.parquet", user=np.arange(ROWS, dtype=np.int32) % 7)
    written(tmp_path / "b.parquet", user=np.arange(ROWS, dtype=np.int64) % 11)
    written(tmp_path / "c.parquet", user=pa.nulls(ROWS))
    whole = describe(tmp_path)
    (user,) = (column for column in whole.report.columns if column.name == "user")
    assert (user.kind, user.distinct, user.rows, user.nulls) == ("int32, int64", 11, 3 * ROWS, ROWS)
    assert "user" in [field.name for field in whole.schema.sparse]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([1.5], pa.float32()), pa.array([2.5], pa.float64()), "float, double"),
        (
            pa.array([[1]], pa.list_(pa.int32())),
            pa.array([[2]], pa.large_list(pa.int64())),
            "list, large_list",
        ),
        (pa.array([[]], pa.list_(pa.null())), pa.array([["a"]], pa.list_(pa.string())), "list, list"),
    ],
    ids=["fractions", "lists", "lists without any value"],
)
def test_so_are_columns_of_other_types_that_are_read_alike(tmp_path, first, second, kind):
    for name, one in (("a", first), ("b", second)):
        written(tmp_path / f"{name}.parquet", more=pa.concat_arrays([one] * ROWS))
    (more,) = (column for column in describe(tmp_path).report.columns if column.name == "more")
    assert (re.sub(r"<.*?>", "", more.kind), more.rows) == (kind, 2 * ROWS)


def test_a_column_that_begins_without_any_value_is_what_later_files_say(tmp_path):
    written(tmp_path / "a.parquet", user=pa.nulls(ROWS))
    written(tmp_path / "b.parquet", user=[f"u{number % 9}" for number in range(ROWS)])
    (user,) = (column for column in describe(tmp_path).report.columns if column.name == "user")
    assert (user.kind, user.distinct, user.rows) == ("string", 9, 2 * ROWS)


@pytest.mark.parametrize("asked", ["", "*.parquet"])
def test_a_link_that_leads_nowhere_is_told_and_not_left_out(tmp_path, asked):
    written(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone.parquet")
    with pytest.raises(DataError, match=r"b.parquet: a link to .*gone.parquet, which is not there"):
        ParquetData(tmp_path / asked, Schema(label="clicked", sparse=["user"]))
    assert any("b.parquet: a link to" in problem for problem in check(tmp_path / asked).problems)


def test_links_that_lead_to_data_are_data_and_others_than_data_are_nobodys_matter(tmp_path):
    """Writers leave hidden files and folders behind, and a link among them may have lost its file."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data / "_temporary", elsewhere):
        folder.mkdir(parents=True)
    written(elsewhere / "a.parquet")
    (data / "a.parquet").symlink_to(elsewhere / "a.parquet")
    for name in (".b.parquet", "_temporary/c.parquet", "notes.txt"):
        (data / name).symlink_to(tmp_path / "gone")
    (data / "old.parquet").mkdir()
    for asked in (data, data / "*.parquet"):
        assert ParquetData(asked, Schema(label="clicked", sparse=["user"])).rows == ROWS


def test_the_job_file_that_it_writes_is_one_that_trains(tmp_path, capsys):
    path = written(tmp_path / "data.parquet")
    job = tmp_path / "first.yaml"
    assert main(["describe", str(path), "--out", str(job)]) == 0
    assert f"a job file is in {job}: pslib train {job}" in capsys.readouterr().out
    assert read_job(job).data.schema == describe(path).schema
    assert main(["describe", str(path), "--out", str(job)]) == 64
    assert main(["train", str(job), "--quiet", "--set", f"out={tmp_path / 'run'}", "--servers", "1"]) == 0


def test_a_place_where_no_job_file_can_be_written_is_told_before_the_data_is_read(tmp_path, capsys):
    file = tmp_path / "taken"
    file.write_text("a file of somebody's")
    for below in ("job.yaml", "deeper/job.yaml"):
        assert main(["describe", str(tmp_path / "gone.parquet"), "--out", str(file / below)]) == 64
        why = f"{file} is a file, not a folder"
        assert capsys.readouterr().err == (
            f"pslib: --out: {file / below} can't be written: {why}; give another\n"
        )


def test_problems_of_the_data_are_counted_in_the_last_line(tmp_path, capsys):
    path = written(tmp_path / "data.parquet")
    assert main(["describe", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no problem found"
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(path.read_bytes()[:-20])
    assert main(["describe", str(path), str(damaged)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "1 problem"
    assert [line for line in lines if line.startswith(f"problem: {damaged}: expected a Parquet file")]
    assert main(["data", "check", str(path), str(damaged)]) != 0


def test_lists_in_texts_are_ragged_with_their_separator(tmp_path):
    texts = ["|".join(f"t{one}" for one in range(number % 9, 9)) for number in range(ROWS)]
    found = describe(written(tmp_path / "data.parquet", tags=texts))
    assert found.schema.ragged == (RaggedField("tags", separator="|"),)
    (tags,) = (one for one in found.choices if one.name == "tags")
    assert tags.reason == "lists of 5.0 on average, texts divided by '|'"


SESSIONS = [[3, 1, 2], [2, 2], [5, 1, 4, 1]] * 50


def test_sessions_are_described_without_a_label_and_train(tmp_path, capsys):
    path = tmp_path / "data" / "sessions.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"items": SESSIONS, "visitor": np.arange(150) % 7}), path)
    assert main(["describe", str(path), "--out", str(tmp_path / "job.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "items    ragged    sessions of 3.0 of 5 different items on average, no label" in shown
    assert "visitor  left out  a session model reads the list alone" in shown
    job = read_job(tmp_path / "job.yaml")
    assert job.data.schema == Schema(label=None, ragged=["items"])
    assert job.model.name == "gru4rec"
    assert job.test_data is None  # tests of sessions have other columns


def test_clicks_a_row_each_are_refused_with_the_way_to_sessions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = {"movie id": [3, 1, 3], "Timestamp": [20, 10, 30], "rating": [5, 1, 3]}
    pq.write_table(
        pa.table({"user_id": [9, 9, 4], **columns}).rename_columns({"movie id": "movie_id"}), "clicks.parquet"
    )
    with pytest.raises(DataError) as error:
        describe("clicks.parquet")
    (line,) = error.value.problems
    assert line.startswith("which column is the label? none holds 0 and 1 alone: name it with --label; ")
    command = re.search(r"pslib (convert sessions --session user_id --item movie_id --time Timestamp) ", line)
    assert command
    assert main([*command[1].split(), "clicks.parquet", "sessions.parquet"]) == 0
    assert pq.read_table("sessions.parquet").to_pydict() == {"items": [[1, 3]]}
    assert describe("sessions.parquet").schema == Schema(label=None, ragged=["items"])
    assert "if it is another column, say which values count as 1, in pandas by frame['COLUMN']" in line


def test_a_job_file_names_data_relative_to_itself(tmp_path):
    path = written(tmp_path / "data.parquet")
    (tmp_path / "jobs").mkdir()
    out = tmp_path / "jobs" / "job.yaml"
    assert main(["describe", str(path), "--label", "clicked", "--out", str(out)]) == 0
    assert yaml.safe_load(out.read_text())["data"]["train"] == ["../data.parquet"]
    assert read_job(out).data.train == [str(path)]


def test_data_that_shares_no_folder_with_a_job_file_is_named_whole_and_a_uri_as_it_is(tmp_path):
    assert near("s3://bucket/data", tmp_path) == "s3://bucket/data"
    assert near("/elsewhere/data.parquet", tmp_path) == "/elsewhere/data.parquet"
    assert near(str(tmp_path / "a" / "b.parquet"), tmp_path / "c") == "../a/b.parquet"


def test_lists_of_fractions_are_left_out_since_no_field_reads_them(tmp_path):
    found = describe(written(tmp_path / "data.parquet", vector=[[0.5, 1.5]] * ROWS))
    assert [one.reason for one in found.choices if one.name == "vector"] == [
        "lists of numbers with fractions: no field is made of them"
    ]
    ParquetData(tmp_path / "data.parquet", found.schema)
    pq.write_table(pa.table({"items": [[1, 2]] * 9, "vector": [[0.5]] * 9}), tmp_path / "sessions.parquet")
    assert describe(tmp_path / "sessions.parquet").schema == Schema(label=None, ragged=["items"])


def test_a_column_with_infinite_values_is_left_out_with_what_to_do(tmp_path):
    """A training would refuse it."""
    price = np.linspace(1, 2, ROWS)
    price[[3, 7]] = np.inf, -1e39
    found = describe(written(tmp_path / "data.parquet", price=price))
    assert [field.name for field in found.schema.dense] == ["share"]
    assert [one.reason for one in found.choices if one.name == "price"] == [
        "2 infinite values, and a dense one is finite in float32: replace them, then add it"
    ]


def test_a_file_whose_columns_make_no_field_says_why(tmp_path):
    labels, names = pa.array([0, 1] * 9), pa.array(["a", "b"] * 9)
    twice = pa.Table.from_arrays([labels, names, names], ["click", "user", "user"])
    pq.write_table(twice, tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"data.parquet: no column but .* 'user': is there 2 times; rename"):
        describe(tmp_path / "data.parquet")


def test_a_job_file_for_sessions_has_no_line_for_a_label(tmp_path):
    path, out = tmp_path / "sessions.parquet", tmp_path / "s.yaml"
    pq.write_table(pa.table({"items": [[1, 2, 3], [2, 3], [3, 1]] * 20}), path)
    assert main(["describe", str(path), "--out", str(out)]) == 0
    assert "label" not in out.read_text()
    assert read_job(out).data.schema == describe(path).schema


@pytest.mark.parametrize(
    ("values", "first", "count"),
    [
        ([0, 1, 2, None], "2", 2),
        ([0.0, 1.0, 0.5, float("nan")], "0.5", 2),
        ([True, False, None, True], "null", 1),
    ],
)
def test_a_label_that_is_named_is_looked_at_like_one_that_is_found(tmp_path, capsys, values, first, count):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"y": values * 50, "u": [n % 9 for n in range(200)]}), path)
    assert main(["describe", str(path), "--label", "y"]) == 0
    said = capsys.readouterr().out
    (problem,) = [line for line in said.splitlines() if line.startswith("problem: ")]
    assert f"row 2 (from 0) in row group 0, column 'y': a label is 0 or 1, got {first}; " in problem
    assert problem.endswith(f"; {50 * count} such values in all")
    assert "no problem found" not in said
    assert check(path, label="y").problems == (problem.removeprefix("problem: "),)
    assert check(path).ok


@pytest.mark.parametrize("name", ["kind", "label"])
def test_a_label_of_a_type_that_is_none_is_refused(tmp_path, name):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({name: ["a", "b"] * 50, "u": [n % 9 for n in range(100)]}), path)
    with pytest.raises(DataError) as told:
        describe(path, "kind" if name == "kind" else None)
    words = (
        f"{path}: column '{name}': a label is integer, float or boolean, got string; say which values count "
        f"as 1, in pandas by frame['{name}'] = frame['{name}'].isin(VALUES)"
    )
    assert told.value.problems == (words,)


ODD = [
    "a\nb",
    "\n",
    "a\r\nb",
    "a\x85",
    "\u2028",
    "a: b",
    "a, b",
    "# a",
    "[",
    "'",
    '"',
    "\\n",
    "1e3",
    "null",
    " a ",
    "a\tb",
]


def test_columns_with_odd_names_are_found_again_by_the_job_file(tmp_path):
    names = [*ODD, *(f"column {n}" for n in range(30))]
    values = {name: [(n * 7 + i) % 11 for n in range(200)] for i, name in enumerate(names)}
    pq.write_table(pa.table({"yes\nno": [0, 1] * 100} | values), tmp_path / "a\nb.parquet")
    config = tmp_path / "job.yaml"
    assert main(["describe", str(tmp_path / "a\nb.parquet"), "--label", "yes\nno", "--out", str(config)]) == 0
    job = read_job(config)
    assert job.data.schema == Schema(label="yes\nno", sparse=names)
    assert ParquetData(job.data.train, job.data.schema).rows == 200


@pytest.mark.parametrize("files", [["k1.csv", "k2.csv"], ["k2.csv", "k1.csv"]])
def test_ids_that_are_integers_in_one_text_and_names_in_the_next_are_one_column_of_keys(
    tmp_path, monkeypatch, files
):
    monkeypatch.chdir(tmp_path)
    for name, letter in (("k1.csv", ""), ("k2.csv", "A")):
        rows = "".join(f"{i % 2},{letter}{i % 7}\n" for i in range(300))
        (tmp_path / name).write_text(f"click,user\n{rows}")
    found = describe(files)
    assert [one.name for one in found.schema.sparse] == ["user"]
    (user,) = (one for one in check(files, found.schema).columns if one.name == "user")
    assert (user.kind, user.rows, user.distinct) == ("string", 600, 14)
