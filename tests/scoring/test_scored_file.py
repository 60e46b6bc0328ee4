"""Scored files: rows in their order beside their predictions, whatever Arrow can't join."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pslib
from pslib.scoring.scored_file import write_scored
from pslib.serving.comparison import compare
from rec_models import LR


def test_lists_of_dictionaries_in_several_row_groups_are_scored_as_lists_of_texts(tmp_path: Path) -> None:
    lists = [["a", "b"], ["b"], [], ["c", "a"], ["a"], ["b", "c"]]
    table = pa.table({"words": lists, "click": [1, 0, 0, 1, 1, 0]})
    packed = table.set_column(0, "words", pa.array(lists, pa.list_(pa.dictionary(pa.int32(), pa.string()))))
    plain, file = tmp_path / "plain.parquet", tmp_path / "packed.parquet"
    pq.write_table(table, plain)
    pq.write_table(packed, file, row_group_size=4)
    with pslib.connect() as cluster:
        schema = pslib.Schema(label="click", ragged=["words"])
        trainer = pslib.Trainer(LR(schema), cluster, batch_rows=2, progress=False)
        trainer.fit(plain)
        trainer.save(tmp_path / "checkpoint")
    model = pslib.load(tmp_path / "checkpoint")
    assert write_scored(model, [str(file)], str(tmp_path / "scored")) == 6
    found = pq.ParquetFile(tmp_path / "scored").read(columns=["prediction"])
    assert found["prediction"].to_pylist() == model.predict(plain).tolist()
    scored = compare(model, [str(file)], lambda records: (model.predict(records), "1"))
    assert (scored.rows, scored.largest) == (6, 0.0)
