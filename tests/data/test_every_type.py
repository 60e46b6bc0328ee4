"""Check, description, training, evaluation, scoring, recommendation and export agree on every Arrow type.

All take a column in a role, or all refuse it in the same words, which name the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.data import LeaseReader, Order
from pslib.data.arrow_data import open_data
from pslib.data.columns import plain_batch
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import DataError
from pslib.schema import RaggedField, Schema, SparseField
from pslib.scoring.scored_file import write_scored
from rec_models import build
from tests.support.data.arrow_types import AROUND, CODES, ROWS, columns

ROLES = {
    "label": lambda name: {"label": name, "dense": ["number"], "sparse": ["id"]},
    "weight": lambda name: {"label": "click", "weight": name, "sparse": ["id"]},
    "dense": lambda name: {"label": "click", "dense": [name]},
    "sparse": lambda name: {"label": "click", "sparse": [name]},
    "ragged": lambda name: {"label": "click", "ragged": [RaggedField(name)]},
    "cross": lambda name: {"label": "click", "sparse": [SparseField("cross", of=("id", name))]},
    "take": lambda name: {"label": "click", "sparse": [SparseField("part", of=name, take="weekday")]},
    "buckets": lambda name: {"label": "click", "sparse": [SparseField("part", of=name, buckets=(0.5,))]},
}
SAMPLE = """uint8;halffloat;decimal128(5, 0);string_view;date32[day];timestamp[ms];duration[s];null
dictionary of large_string;extension<arrow.uuid>;struct<a: int64>""".replace("\n", ";").split(";")
SOAK = pytest.mark.soak
SHORT = [("alone", True), ("list_view", True), ("list", False)]
CASES = [(*case, SAMPLE) for case in SHORT]
CASES += [pytest.param(around, nulls, None, marks=SOAK) for around in AROUND for nulls in (False, True)]


def written(folder: Path, around: str, nulls: bool, sample: list[str] | None) -> Iterator[tuple[str, Path]]:
    """Files of one column of a type each, beside sound ones; its name is ``x``."""
    for place, (name, array) in enumerate(columns(around, nulls).items()):
        if sample is None or name in sample:
            pq.write_table(table(array), folder / f"{place}.parquet", row_group_size=4)
            yield name, folder / f"{place}.parquet"


def table(array: pa.Array) -> pa.Table:
    sound = {"click": CODES, "id": list(range(ROWS)), "number": [0.5 * code for code in CODES]}
    return pa.table({**sound, "x": array})


def refusal(source: Path | pa.Table, schema: Schema) -> str | None:
    """The line with which a training refuses a file or a table, before it starts or when it reads."""
    try:
        data = open_data(source, schema)
        order = Order(0, [group.rows for group in data.row_groups], ROWS, shuffle=False)
        assert sum(len(batch) for batch in LeaseReader(data, schema, order, ROWS).batches(0, 0)) == ROWS
    except DataError as error:
        (line,) = error.problems
        return line
    return None


@pytest.mark.parametrize(("around", "nulls", "sample"), CASES)
def test_a_column_is_taken_by_all_or_refused_by_all(
    tmp_path: Path, around: str, nulls: bool, sample: list[str] | None
) -> None:
    taken: dict[str, list[tuple[Path, Schema]]] = {role: [] for role in ROLES}
    arrays = columns(around, nulls)
    for name, path in written(tmp_path, around, nulls, sample):
        for role, of in ROLES.items():
            schema = Schema(**of("x"))
            line = refusal(path, schema)
            told = check(path, schema).problems
            assert [one.partition("; 2 such")[0] for one in told] == ([line] if line else []), (name, role)
            assert line is None or "column 'x'" in line
            assert (refusal(table(arrays[name]), schema) is None) == (line is None), (name, role)
            in_memory = refusal(pq.read_table(path), schema)  # Parquet renames some types
            assert words(in_memory) == words(line)
            if line is None:
                taken[role].append((path, schema))
        described(path)
    for some in taken.values():
        trained(tmp_path, some[:2] if sample else some)


def words(line: str | None) -> str:
    """A line without the place before its column, and without names of what is in a map."""
    return re.sub(r" \('\w+'\)", "", str(line).partition("column 'x': ")[2])


def described(path: Path) -> None:
    """A schema that a description proposes can be read, and it refuses the label that a training refuses."""
    found = describe(path, "click")
    assert refusal(path, found.schema) is None
    assert "x" in [one.name for one in found.choices]
    line = refusal(path, Schema(**ROLES["label"]("x")))
    if line is not None and "a label is 0 or 1" not in line:
        with pytest.raises(DataError) as caught:
            describe(path, "x")
        assert caught.value.problems == (line,)
    else:
        assert [one.partition("; 2 such")[0] for one in describe(path, "x").report.problems] == [line] * bool(
            line
        )


def trained(folder: Path, files: list[tuple[Path, Schema]]) -> None:
    """Each file trains, is evaluated, scored and saved; the loaded model predicts the same."""
    for path, schema in files:
        out = Path(mkdtemp(dir=folder))
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(build("fm", schema, {"dim": 2}), cluster, batch_rows=4, progress=False)
            trainer.fit(path)
            assert trainer.evaluate(path).examples == ROWS
            trainer.evaluate(path, predictions=out / "scores")
            trainer.save(out / "checkpoint")
        scores = pq.read_table(out / "scores")["prediction"].to_pylist()
        assert write_scored(pslib.load(out / "checkpoint"), [str(path)], str(out / "file")) == ROWS
        assert pq.read_table(out / "file")["prediction"].to_pylist() == pytest.approx(scores)


@pytest.mark.parametrize(
    ("nulls", "sample"),
    [(True, SAMPLE), pytest.param(False, None, marks=SOAK), pytest.param(True, None, marks=SOAK)],
)
def test_items_of_every_type_are_recommended_and_exported(
    tmp_path: Path, nulls: bool, sample: list[str] | None
) -> None:
    lists = dict(written(tmp_path, "list", nulls, sample))
    alone = columns("alone", nulls)
    for name, path in lists.items():
        schema = Schema(label=None, ragged=["x"])
        line = refusal(path, schema)
        assert list(check(path, schema).problems) == ([line] if line else [])
        if line or alone[name].null_count == ROWS:
            continue
        asked, items, out = (tmp_path / f"{path.stem} {what}" for what in ("asked", "items", "out"))
        pq.write_table(pa.table({"prefix": pq.read_table(path)["x"], "target": alone[name]}), asked)
        pq.write_table(pa.table({"item": alone[name]}), items)
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(
                build("gru4rec", schema, {"dim": 2}), cluster, batch_rows=4, progress=False
            )
            trainer.fit(path)
            assert trainer.rank(asked, path, at=[1]).examples
            trainer.recommend(asked, path, out, k=1)
            best = pq.read_table(out)["items"].combine_chunks().flatten().drop_null()
            stored = plain_batch(pa.record_batch({"x": alone[name]})).column("x")
            assert set(best.to_pylist()) <= set(stored.to_pylist()), name
            trainer.export_vectors(items, tmp_path / f"{path.stem} vectors")
