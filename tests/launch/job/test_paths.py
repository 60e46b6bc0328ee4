"""Paths as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.job.paths import from_here


def test_a_path_is_told_as_one_would_type_it_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "runs" / "clicks"
    monkeypatch.chdir(tmp_path)
    assert from_here(inside) == "runs/clicks"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert from_here(inside) == str(inside)
    monkeypatch.chdir("/")
    assert from_here(Path("/var/lib/pslib/run")) == "/var/lib/pslib/run"
