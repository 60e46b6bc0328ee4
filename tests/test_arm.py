"""A table holds the same bits on 64-bit ARM (NEON) as on this machine."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-unused-function", "-static", "-lm"]
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"


def lines_of(compiler, folder, *runner):
    """What tests/same_bits.c prints, built by this compiler and run by this emulator."""
    program = folder / compiler
    source = [str(ROOT / "tests/same_bits.c"), "-I", str(ROOT / "cython_ext")]
    subprocess.run([compiler, *source, "-o", str(program), *FLAGS], check=True, timeout=120)
    ran = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True, timeout=120)
    return ran.stdout.splitlines()


def test_the_flags_are_those_of_the_build():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert all(f'"{flag}"' in setup for flag in FLAGS[:4])


@pytest.mark.skipif(
    not (shutil.which(CROSS) and shutil.which(EMULATOR)),
    reason=f"needs {CROSS} and {EMULATOR} (Debian: gcc-aarch64-linux-gnu, qemu-user-static)",
)
@pytest.mark.skipif(sysconfig.get_platform() == "linux-aarch64", reason="this machine is the ARM machine")
def test_records_give_the_same_bits_on_arm_as_here(tmp_path):
    here, arm = lines_of("gcc", tmp_path), lines_of(CROSS, tmp_path, EMULATOR)
    assert len(here) == len(set(here)) == 6 * 4 * 5
    assert arm == here
