"""A command whose output is not read, or can't be written in its encoding, still does its work."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes.standin_launch import ROOT

CODE = """
import pathlib, sys
from launch.cli.main import main, version_command

def version(as_json):
    print("a line", flush=True)
    print("an error", file=sys.stderr)
    sys.stdin.read()
    for _ in range(3):
        print("x" * 100_000, flush=True)
        print("y" * 100_000, file=sys.stderr, flush=True)
    pathlib.Path(sys.argv[1]).touch()
    return 75

version_command.callback = version
sys.exit(main(["version"]))
"""


def begin(tmp_path: Path, output: int, *python: str) -> subprocess.Popen[bytes]:
    """A command that says a line, then waits until its input ends, says more and does its work."""
    return subprocess.Popen(
        [sys.executable, *python, "-c", CODE, str(tmp_path / "done")],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=ROOT,
    )


def assert_done(process: subprocess.Popen[bytes], folder: Path) -> None:
    """With the exit code that it had chosen, at the end of its work."""
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert (folder / "done").exists()


@pytest.mark.parametrize("python", [(), ("-u",)])
def test_a_command_goes_on_to_its_end_when_the_pipe_of_its_output_breaks(
    tmp_path: Path, python: tuple[str, ...]
) -> None:
    """``pslib train ... | head -1`` ended the training, with exit code 0."""
    reads, writes = os.pipe()
    process = begin(tmp_path, writes, *python)
    os.close(writes)
    assert os.read(reads, 6) == b"a line"
    os.close(reads)
    assert_done(process, tmp_path)


def test_it_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    process = begin(tmp_path, its)
    os.close(its)
    assert os.read(ours, 6) == b"a line"
    os.close(ours)
    assert_done(process, tmp_path)


def test_names_that_the_outputs_encoding_lacks_are_written_all_the_same(tmp_path: Path) -> None:
    pq.write_table(pa.table({"click": [0, 1], "ü": [1, 2]}), tmp_path / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "data", "check", str(tmp_path / "a.parquet")],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rb"\xfc" in done.stdout


@pytest.mark.parametrize("closed", ["1", "2"])
@pytest.mark.parametrize("words", ["version", "--help", "config show training"])
def test_a_command_without_standard_output_or_error_ends_well(closed: str, words: str) -> None:
    """Shells close them with ``>&-``; Python has None in their place."""
    command = f"{sys.executable} -m launch.cli.main {words} {closed}>&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2")
