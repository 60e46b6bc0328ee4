"""Pages that a heap gives back, and turns of a thread, with the calls of Linux and with their fallbacks."""

import subprocess
from pathlib import Path

import pytest

from tests.values.test_same_bits import FLAGS

ROOT = Path(__file__).parents[2]
SAYS = """\
had memory 1
has memory 0
counted as blank 1
the same addresses 1
filled 1 1 1
bytes left 0
"""
STRICT = ["-Wall", "-Wextra", "-Werror"]


def said(folder: Path, *options: str) -> str:
    """Output of ``heap_pages.c``, compiled with these options."""
    program = folder / "heap_pages"
    source = [str(ROOT / "tests/table/heap_pages.c"), "-I", str(ROOT / "cython_ext"), "-o", str(program)]
    subprocess.run(["gcc", *source, *STRICT, *options, *FLAGS], check=True, timeout=120)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("options", [(), ("-DPSLIB_NO_LINUX",)], ids=["this system", "no Linux"])
def test_a_freed_block_between_others_has_no_memory_after_a_trim_and_is_taken_again(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    assert said(tmp_path, *options).startswith(SAYS)


def test_where_a_thread_can_not_say_how_long_its_turns_are_it_never_gives_way(tmp_path: Path) -> None:
    assert said(tmp_path, "-DPSLIB_NO_LINUX") == SAYS + "turns as the system likes, given way 0\n"
