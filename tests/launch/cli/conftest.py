"""A job for tests of commands."""

from pathlib import Path

import pytest

from tests.support.job_folder import JOB, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job file and its data."""
    save(tmp_path, "train.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path
