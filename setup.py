"""Build of the Cython kernels; everything else about the package stands in pyproject.toml.

All Cython directives and compiler flags live here and nowhere else: a misspelt directive in a file
header is ignored in silence.
"""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

# -ffp-contract=off: no fused multiply-add behind our back, so a kernel and its NumPy definition give the
# same bits. No -march=native: a wheel runs on any x86-64 or ARM machine. -g0: a Python that was built with -g
# hands it on, and 22 of the 27 MB of the kernels would be debugging symbols.
COMPILE_ARGS = ["-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-Wno-unused-function"]
LINK_ARGS: list[str] = []
if os.environ.get("PSLIB_SANITIZE") == "address":
    COMPILE_ARGS = ["-O1", "-g", "-ffp-contract=off", "-fno-omit-frame-pointer", "-fsanitize=address"]
    LINK_ARGS = ["-fsanitize=address"]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "freethreading_compatible": False,
}


def extension(source: Path) -> Extension:
    """One extension module for one .pyx file."""
    headers = sorted(str(path) for path in Path("cython_ext").rglob("*.h"))
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=[numpy.get_include(), "cython_ext"],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
        depends=headers,
    )


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

# An editable install compiles into a folder that is thrown away, so `make` would compile all of it a
# second time: it installs without kernels and compiles them in a step of its own, which keeps what it has.
SOURCES = [] if os.environ.get("PSLIB_KERNELS") == "later" else sorted(Path("cython_ext").rglob("*.pyx"))

# The processes of cythonize import this file where they are not forks: on macOS, and from Python 3.14 on.
if __name__ == "__main__":
    setup(
        ext_modules=cythonize(
            [extension(source) for source in SOURCES], compiler_directives=DIRECTIVES, nthreads=CORES
        ),
        options={"build_ext": {"parallel": CORES}},
    )
