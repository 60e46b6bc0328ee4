"""Circles of imports are found wherever the imports stand, and nothing else is taken for one."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "house.py"
spec = importlib.util.spec_from_file_location("house", SCRIPT)
assert spec is not None
assert spec.loader is not None
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)

TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pslib.b import B\n"


def status_of(folder: Path, **files: str) -> int:
    for package in house.CODE:
        (folder / package).mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "pslib" / f"{name}.py").write_text(text)
    return house.main(folder)


def test_an_import_for_types_or_within_a_function_closes_a_circle(tmp_path, capsys):
    late = "def f():\n    from pslib.c import C\n"
    assert status_of(tmp_path, a=TYPE_ONLY, b=late, c="import pslib.a\n", d="import pslib.a\n") == 1
    out = capsys.readouterr().out
    assert "  pslib.a imports pslib.b\n  pslib.b imports pslib.c\n  pslib.c imports pslib.a\n1 circles" in out
    assert "pslib.d imports" not in out


def test_a_package_that_offers_its_modules_is_in_no_circle_with_those_that_import_each_other(
    tmp_path, capsys
):
    offers = "from pslib.a import A\n"
    assert status_of(tmp_path, __init__=offers, a=TYPE_ONLY, b="import numpy\n") == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("5 lines of code in 3 files: pslib, launch")
