"""Builds from the sources are complete: sdist, wheel, and an installation that runs from any folder."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.processes.command import ROOT
from tests.support.processes.installed import (
    copy_of_sources,
    files_not_ignored,
    installed,
    run,
    tracked_files,
    wheel_of_this_checkout,
)

PACKAGES = ("pslib", "cython_ext", "rec_models", "launch")
LEFT_OUT = (".pyx", ".pxd", ".h", ".c", ".LICENSE.txt")
"""Suffixes left out of packages: a wheel has what sources are compiled to, and licenses in dist-info."""
WHEEL_BYTES_MAX = 8_000_000


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    return tracked_files()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_sources(tmp_path_factory.mktemp("sources"))


def test_of_an_unpacked_sdist_all_is_taken_that_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("build/\n/runs/\n*.so\nkernels/**/*.c\n")
    kept = [".gitignore", "a.py", "kernels/x.pyx", "launch/runs/train.py", "tests/same.c"]
    ignored = [
        ".git/config",
        "PKG-INFO",
        "kernels/deep/x.c",
        "kernels/x.so",
        "pslib/build/a.py",
        "runs/out.json",
    ]
    for name in (*kept[1:], *ignored):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_not_ignored(tmp_path) == kept


def test_the_sdist_holds_every_file_of_the_repository(
    sources: Path, tracked: list[str], tmp_path: Path
) -> None:
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, folder=sources)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert sorted(set(tracked) - inside) == []


def test_the_packages_hold_every_module_stub_and_document_and_nothing_twice_or_to_compile(
    sources: Path, tracked: list[str], tmp_path: Path
) -> None:
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", tmp_path, folder=sources)
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    of_packages = {name for name in tracked if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    expected = {name for name in of_packages if not name.endswith(LEFT_OUT)}
    assert sorted(expected - built) == []
    assert [name for name in built if name.endswith(LEFT_OUT)] == []
    assert {f"{package}/py.typed" for package in PACKAGES} <= built


@pytest.mark.wheel
@pytest.mark.timeout(2400)
def test_a_wheel_in_an_empty_environment_runs_from_any_folder(tmp_path: Path) -> None:
    """The wheel with its core dependencies only."""
    wheel = wheel_of_this_checkout(tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    kernels = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert kernels == {path.stem for path in (ROOT / "cython_ext").rglob("*.pyx")}
    assert not [name for name in names if name.endswith(LEFT_OUT)]
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == set(PACKAGES)
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX
    with installed(wheel, tmp_path) as user:
        assert user.run("pslib", "--version") == user.run("python", "-m", "pslib", "version")
        user.run("python", "-c", "import pslib, rec_models, launch, cython_ext; rec_models.TorchModel")
        user.run("pslib", "data", "generate", "small", "--rows", "20000", "--test-rows", "5000")
        script = shutil.copy(ROOT / "examples" / "train_deepfm.py", user.home)
        assert "AUC 0." in user.run("python", script, "small")
        many = ("--servers", "2", "--trainers", "2")
        assert "AUC 0." in user.run("pslib", "launch", *many, script, "small")
        assert "AUC" in user.run("pslib", "demo", "--quiet")
        assert (user.home / "runs" / "demo" / "summary.json").is_file()
