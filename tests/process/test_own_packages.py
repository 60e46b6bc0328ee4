"""Other packages named launch, rec_models or cython_ext do not take the place of pslib's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.process.excepthook import OWN

ROOT = Path(__file__).resolve().parents[2]
JOB = "data: {train: d.parquet, schema: {label: label, sparse: [id]}}\nmodel: {name: lr}\nout: run\n"


def others(folder: Path) -> None:
    """Two modules and a package with the names of pslib's."""
    for name in OWN:
        file = folder / (f"{name}.py" if name != "rec_models" else f"{name}/__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise SystemExit('another package')\n")


def ran(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={"PYTHONPATH": f"{path}:{ROOT}"}, text=True,
        capture_output=True, timeout=100, check=False,
    )  # fmt: skip


COMMAND = ("-P", "-m", "pslib.process.own_packages", "launch.cli.main")


@pytest.mark.parametrize(
    "words", [("version",), ("--help",), ("config", "show", "model"), ("plan", "--help")]
)
def test_a_command_finds_its_own_packages_whatever_the_path_has(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    others(tmp_path)
    done = ran(tmp_path, *COMMAND, *words, path=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "another package" not in done.stdout


@pytest.mark.cluster
def test_the_processes_of_a_run_find_their_own_packages_too(tmp_path: Path) -> None:
    others(tmp_path)
    pq.write_table(pa.table({"label": np.arange(200) % 2, "id": np.arange(200)}), tmp_path / "d.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    done = ran(tmp_path, *COMMAND, "train", "job.yaml", path=str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "use"), [("cython_ext", "pslib.connect"), ("rec_models", "from rec_models import FM")]
)
def test_a_script_beside_a_file_of_such_a_name_is_told_which_to_rename(
    tmp_path: Path, name: str, use: str
) -> None:
    (tmp_path / f"{name}.py").touch()
    (tmp_path / "script.py").write_text(f"import pslib\npslib.Schema(label='l', sparse=['a'])\n{use}\n")
    done = ran(tmp_path, "script.py")
    line, place = done.stderr.splitlines()
    assert place.startswith(f"  {tmp_path / 'script.py'}, line ")
    assert (done.returncode, line[: line.index(": exp")]) == (64, f"pslib: {tmp_path / name}.py")
    assert line.endswith("rename it")
