"""CPU cores of a trainer, and the thread count and kernels of BLAS.

Two trainers that each use all cores slow each other down: OpenBLAS threads spin while they wait. So a
launcher tells each trainer how many share its machine, and each of the trainer's threads calls BLAS with one
thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pslib.process.machine import cores
from pslib.process.platform import processor_text

TRAINERS_HERE = "PSLIB_TRAINERS_HERE"
"""Environment variable: number of trainers that share this machine's cores."""

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def cores_given(environment: Mapping[str, str] = os.environ) -> int:
    """Return one trainer's share of the cores that this process may use."""
    sharing = int(environment.get(TRAINERS_HERE, "1"))
    return max(1, cores() // max(1, sharing))


def kernels_for(cpu: str | None = None) -> dict[str, str]:
    """Return the environment that makes OpenBLAS use its AVX-512 kernels.

    It must be set before NumPy is imported.

    On AMD processors newer than the OpenBLAS release, OpenBLAS falls back to its Haswell kernels, which
    halves the speed of matrix products (58,000 instead of 98,000 examples/s of DeepFM's products on Zen 5,
    NumPy's own OpenBLAS).

    Parameters
    ----------
    cpu : str or None
        Contents of ``/proc/cpuinfo``; None reads the file where there is one.

    Returns
    -------
    dict of str to str
        Empty on every other processor, where OpenBLAS chooses.
    """
    cpu = processor_text() if cpu is None else cpu
    flags = next((line for line in cpu.splitlines() if line.startswith("flags")), "").split()
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if "AuthenticAMD" in cpu and set(flags) >= _AVX512 else {}


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Limit BLAS to this many threads per call within the context."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads, user_api="blas"):
        yield


def describe_blas() -> str:
    """Describe the BLAS in use, for instance ``openblas 0.3.31 SkylakeX, 1 thread``."""
    from threadpoolctl import threadpool_info

    libraries = []
    for library in threadpool_info():
        if library.get("user_api") == "blas":
            threads = library["num_threads"]
            words = [library["internal_api"], library.get("version"), library.get("architecture")]
            count = f"{threads} thread{'s' if threads != 1 else ''}"
            libraries.append(f"{' '.join(str(word) for word in words if word)}, {count}")
    return "; ".join(libraries) or "an unknown BLAS"
