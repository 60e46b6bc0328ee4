"""Builds from the sources are complete: sdist, wheel, and an installation that runs from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.processes.command import ROOT

PACKAGES = ("pslib", "cython_ext", "rec_models", "launch")


def run(*arguments: str | Path, folder: Path, limit_s: float = 300) -> str:
    """The output of a program that must succeed, without this checkout on its path."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PSLIB"))
    }
    command = [str(argument) for argument in arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Files of the repository."""
    try:
        listed = run("git", "ls-files", "--cached", folder=ROOT)
    except (AssertionError, FileNotFoundError):
        pytest.skip(
            "what a source distribution must hold is git's list of files, and this is no git checkout"
        )
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def sources(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files alone, so that nothing that was built by chance is taken along."""
    folder = tmp_path_factory.mktemp("sources")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def test_the_sdist_holds_every_file_of_the_repository(
    sources: Path, tracked: list[str], tmp_path: Path
) -> None:
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, folder=sources)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert sorted(set(tracked) - inside) == []


def test_the_packages_hold_every_source_stub_and_document(
    sources: Path, tracked: list[str], tmp_path: Path
) -> None:
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path, folder=sources)
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    expected = {name for name in tracked if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    assert sorted(expected - built) == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= built


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_wheel_in_an_empty_environment_runs_from_any_folder(sources: Path, tmp_path: Path) -> None:
    """The wheel with its core dependencies only; needs a package index, or pip's cache."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ".", folder=sources)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert sum(name.endswith(".so") for name in names) == len(list((sources / "cython_ext").rglob("*.pyx")))
    assert not [
        name for name in names if name.endswith(".c") or name.split("/")[0] in ("tests", "benchmarks")
    ]
    python, elsewhere = tmp_path / "empty" / "bin" / "python", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "venv", tmp_path / "empty", folder=tmp_path)
    run(python, "-m", "pip", "install", "-q", wheel, folder=tmp_path)
    pslib = tmp_path / "empty" / "bin" / "pslib"
    assert run(pslib, "version", folder=elsewhere).startswith("pslib 0.")
    run(pslib, "data", "generate", "small", "--rows", "20000", "--test-rows", "5000", folder=elsewhere)
    script = shutil.copy(ROOT / "examples" / "train_deepfm.py", elsewhere)
    assert "AUC 0." in run(python, script, "small", folder=elsewhere)
    assert "AUC 0." in run(
        pslib, "launch", "--servers", "2", "--trainers", "2", script, "small", folder=elsewhere
    )
    said = run(pslib, "demo", "--quiet", folder=elsewhere)
    assert "AUC" in said
    assert (elsewhere / "runs" / "demo" / "summary.json").is_file()
    print(said)
