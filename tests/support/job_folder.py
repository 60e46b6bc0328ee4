"""A folder with a job file and its data, and how a command that refuses it must end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main

ROWS = 400


def table(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(1)
    return pa.table(
        {
            "click": pa.array(random.integers(0, 2, rows), pa.int8()),
            "price": pa.array(random.normal(size=rows), pa.float64()),
            "user": pa.array([f"u{number}" for number in random.integers(0, 20, rows)]),
            "history": pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
        }
    )


def save(folder: Path, name: str, **columns: pa.Array) -> Path:
    data = table()
    for column, values in columns.items():
        data = data.set_column(data.schema.names.index(column), column, values)
    pq.write_table(data, folder / name)
    return folder / name


JOB = """\
data:
  train: train.parquet
  test: train.parquet
  schema: {label: click, dense: [price], sparse: [user], ragged: [history]}
model: {name: deepfm, dim: 4, hidden: [8]}
training: {batch_rows: 64}
out: run
"""


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 64) -> list[str]:
    """Lines on standard error of a command that must end with ``code`` and say nothing else."""
    assert main([str(argument) for argument in arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines
    assert all(line.startswith("pslib: ") for line in lines)
    assert "Traceback" not in said.err
    return [line.removeprefix("pslib: ") for line in lines]
