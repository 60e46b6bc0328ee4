"""Output path of the conversion tests."""

from pathlib import Path

import pytest


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"
