"""The sample has the same rows of every column, evenly over the files, in bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pslib.data.inspect.row_sample import CHUNK_ROWS, CHUNKS_MAX, RowSample


def sampled(files: list[int], part_rows: int, columns: int = 2) -> RowSample:
    sample, first = RowSample(), 0
    for rows in files:
        sample.begin(rows, columns)
        numbers = np.arange(first, first + rows)
        for name, array in (("n", pa.array(numbers)), ("s", pa.array(numbers).cast(pa.string()))):
            for start in range(0, rows, part_rows):
                sample.add(name, array.slice(start, part_rows), start)
        first += rows
    return sample


@pytest.mark.parametrize("files", [[5], [300_000], [9_000] * 40, [10] * 100, [0, 70_000, 3]], ids=len)
def test_all_columns_have_the_same_rows_from_all_over_the_files(files: list[int]) -> None:
    sample = sampled(files, 65_536)
    numbers, texts = sample.column("n"), sample.column("s")
    assert numbers is not None
    assert texts is not None
    assert len(numbers) == len(texts) == len(texts.unique())
    found = np.sort(numbers.to_numpy())
    assert (found == numbers.to_numpy()).all()
    assert len(numbers) <= CHUNKS_MAX * CHUNK_ROWS
    assert found[0] == 0
    if sum(files) > CHUNKS_MAX:
        assert found[-1] > sum(files) * 0.8
    again = sampled(files, 1_000).column("n")
    assert again is not None
    assert again.equals(numbers)


def test_many_columns_have_fewer_rows_each() -> None:
    few = sampled([50_000], 65_536, columns=5_000).column("n")
    assert few is not None
    assert 300 < len(few) < 1_000
    assert sampled([50_000], 65_536).column("tags") is None
