"""Files of results: each is there whole or not at all, and what can't be written is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.errors import ConfigurationError
from pslib.trainer.predictions import PartFiles

TABLE = pa.table({"a": [1, 2, 3]})


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, plain = PartFiles("recommend", tmp_path / "out"), pq.write_table

    def full_disk(table: pa.Table, where: str, filesystem: Any) -> None:
        plain(table, where, filesystem=filesystem)
        raise OSError("no space left\nat all")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(ConfigurationError) as caught:
        files.write_table(3, TABLE)
    (line,) = caught.value.problems
    assert line == f"recommend: {tmp_path}/out/part-000003.parquet can't be written: no space left"
    assert list((tmp_path / "out").glob("*.parquet")) == []
    monkeypatch.setattr(pq, "write_table", plain)
    files.write_table(3, TABLE)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["part-000003.parquet"]
    assert pq.read_table(tmp_path / "out").equals(TABLE)


def test_a_folder_that_can_not_be_made_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"vectors: .*file/out can't be made: .*; give another fold"):
        PartFiles("vectors", tmp_path / "file" / "out")
