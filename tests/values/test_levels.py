"""The level of the kernels: processors, or emulators of them, that lack what its copies may use."""

import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VECTORS = (ROOT / "cython_ext/common/vectors.h").read_text(encoding="utf-8")
LEVELS = ["plain", "AVX2", "AVX-512"]
SOURCE = """
#include <cpuid.h>
#include <immintrin.h>
#include <stdio.h>
#include <string.h>
static const char *lacking;
static int has(const char *name) { return strcmp(name, lacking) != 0; }
static int leaf(unsigned number, unsigned *c)
{
    *c = number == 0x80000001u && has("lzcnt") ? 1u << 5 : 0;
    return 1;
}
#define __builtin_cpu_init() ((void)0)
#define __builtin_cpu_supports(name) has(name)
#define __get_cpuid(number, a, b, c, d) leaf(number, c)
#include "common/vectors.h"
int main(int count, char **words)
{
    for (int i = 1; i < count; i++) lacking = words[i], printf("%d\\n", pslib_best_level());
}
"""


def features(macro: str) -> set[str]:
    """Return the processor features that the copies of a level are compiled with."""
    targets = re.findall(rf"{macro} *(?:\\\n *)?__attribute__\(\(target\(\"([^\"]+)\"", VECTORS)
    return {name for one in targets for name in one.split(",")} - {"prefer-vector-width=512"}


def levels_without(folder: Path, names: list[str]) -> list[str]:
    """The level of a machine that has everything but one of these, each."""
    (folder / "levels.c").write_text(SOURCE)
    built = ["gcc", str(folder / "levels.c"), "-I", str(ROOT / "cython_ext"), "-o", str(folder / "levels")]
    subprocess.run(built, check=True, timeout=60)
    ran = subprocess.run([str(folder / "levels"), *names], check=True, capture_output=True, timeout=60)
    return [LEVELS[int(number)] for number in ran.stdout.split()]


@pytest.mark.skipif(
    platform.machine() != "x86_64",
    reason="AVX2 and AVX-512 are names of x86-64: on other processors there is one level and none to choose; "
    "its bits are those of tests/values/test_same_bits.py",
)
def test_a_machine_that_lacks_what_a_level_is_compiled_with_gets_a_lower_one(tmp_path: Path) -> None:
    avx2, avx512 = features("PSLIB_FOR_AVX2"), features("PSLIB_FOR_AVX512")
    assert {"avx2", "bmi", "lzcnt", "popcnt"} <= avx2 < avx512
    assert levels_without(tmp_path, ["nothing"]) == ["AVX-512"]
    names = sorted(avx2)
    assert dict(zip(names, levels_without(tmp_path, names), strict=True)) == dict.fromkeys(names, "plain")
    names = sorted(avx512 - avx2)
    assert dict(zip(names, levels_without(tmp_path, names), strict=True)) == dict.fromkeys(names, "AVX2")
