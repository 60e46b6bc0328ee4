"""The package ``pslib`` as one finds it: its page, its names, and the command of a Python."""

from __future__ import annotations

import doctest
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pslib
import rec_models
from rec_models import DeepFM, TorchModel, torch_model


def test_its_page_names_what_most_scripts_use_and_its_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pydoc.plain(pydoc.render_doc(pslib))
    listed = page.split("Names of most scripts:")[1].split("Models are in")[0].strip().splitlines()
    names = {name for line in listed for name in re.split(r" {3,}", line.strip())[0].split(", ")}
    assert len(names) == 11
    assert names <= set(pslib.__all__)
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(pslib) == (0, 8)


def test_completion_shows_its_public_names_and_nothing_inside() -> None:
    shown = {name for name in dir(pslib) if not name.startswith("__")}
    assert shown == set(pslib.__all__) - {"__version__"}
    assert {"Trainer", "Schema", "connect", "load"} <= shown


@pytest.mark.parametrize("words", [(), ("--version",), ("config", "show", "model.name")])
def test_python_m_pslib_is_the_command(words: tuple[str, ...]) -> None:
    def ran(*command: str) -> tuple[int, str]:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    assert ran(sys.executable, "-m", "pslib") == ran(str(Path(sys.executable).parent / "pslib"))


def test_all_models_are_names_of_rec_models_and_pytorch_is_imported_by_none_of_them() -> None:
    assert TorchModel is torch_model.TorchModel
    assert rec_models.DeepFM is DeepFM
    every = ", ".join(rec_models.__all__)
    code = f"from rec_models import {every}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
