"""Tables hold the bits of a golden file, on this machine and on 64-bit ARM (NEON)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine.sanitizer import COMPILES

ROOT = Path(__file__).parents[2]
GOLDEN = (ROOT / "tests/golden/same_bits.txt").read_text(encoding="utf-8").splitlines()
"""Output of ``tests/values/same_bits.c``; it may change with a formula, on purpose, and never with a
machine."""
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-unused-function", "-static", "-lm"]
LIMIT_S = 280
"""Limit for each program: a compiler needs 35 s of a core, of which others may take most."""
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"


def lines_of(compiler, folder, *runner, options=()):
    """Return the lines of tests/values/same_bits.c, built by this compiler and run by this emulator."""
    program = folder / compiler
    source = [str(ROOT / "tests/values/same_bits.c"), "-I", str(ROOT / "cython_ext")]
    subprocess.run([compiler, *source, "-o", str(program), *options, *FLAGS], check=True, timeout=LIMIT_S)
    ran = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return ran.stdout.splitlines()


def test_the_flags_are_those_of_the_build():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert all(f'"{flag}"' in setup for flag in FLAGS[:4])


def test_the_golden_file_has_every_optimizer_storage_and_width():
    assert len(GOLDEN) == len(set(GOLDEN)) == 6 * 4 * 5


@COMPILES
def test_records_give_the_golden_bits_on_this_machine(tmp_path):
    assert lines_of("gcc", tmp_path) == GOLDEN


@COMPILES
@pytest.mark.skipif(
    not shutil.which("clang"),
    reason="clang, the compiler of macOS, is not among what pslib needs on Linux; with gcc the test above "
    "and tests/table/test_heap_pages.py show the same",
)
def test_records_give_the_golden_bits_with_clang_and_no_call_of_linux(tmp_path):
    assert lines_of("clang", tmp_path, options=["-DPSLIB_NO_LINUX"]) == GOLDEN


@COMPILES
@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"a compiler and an emulator of another processor are not among what pslib needs: {CROSS} and "
    f"{EMULATOR} (Debian: gcc-aarch64-linux-gnu, qemu-user-static); on ARM itself the test above shows it",
)
def test_records_give_the_golden_bits_on_arm(tmp_path):
    assert lines_of(CROSS, tmp_path, EMULATOR) == GOLDEN
