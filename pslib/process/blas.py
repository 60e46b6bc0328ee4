"""Cores that this process may use, and the threads and kernels of BLAS that go with them.

Two trainers that each use all cores take turns and lose: OpenBLAS threads wait for each other in a loop. So a
launcher tells each trainer how many share its machine, and the trainer's own threads each call BLAS with one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pslib.process.machine import cores

__all__ = ["TRAINERS_HERE", "blas_threads", "cores_given", "describe_blas", "kernels_for"]

TRAINERS_HERE = "PSLIB_TRAINERS_HERE"
"""Environment variable: how many trainers share this machine's cores."""

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def cores_given(environment: Mapping[str, str] = os.environ) -> int:
    """Cores of this machine for one trainer: those for this process, shared with other trainers."""
    sharing = int(environment.get(TRAINERS_HERE, "1"))
    return max(1, cores() // max(1, sharing))


def kernels_for(cpu: str | None = None) -> dict[str, str]:
    """Environment that makes OpenBLAS choose its AVX-512 kernels, to be set before NumPy is loaded.

    On AMD processors newer than a release of OpenBLAS it falls back to its Haswell kernels, which halves the
    speed of matrix products (58,000 instead of 98,000 examples/s of DeepFM's products on Zen 5, NumPy's own
    OpenBLAS).

    Parameters
    ----------
    cpu : str or None
        What ``/proc/cpuinfo`` says; None reads it.

    Returns
    -------
    dict of str to str
        Empty where the choice is OpenBLAS's, as on every other processor.
    """
    if cpu is None:
        file = Path("/proc/cpuinfo")
        cpu = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    flags = next((line for line in cpu.splitlines() if line.startswith("flags")), "").split()
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if "AuthenticAMD" in cpu and set(flags) >= _AVX512 else {}


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Let every call of BLAS in this process use so many threads meanwhile."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads, user_api="blas"):
        yield


def describe_blas() -> str:
    """What matrix products use now, for instance ``openblas 0.3.31 SkylakeX, 1 thread``."""
    from threadpoolctl import threadpool_info

    libraries = []
    for library in threadpool_info():
        if library.get("user_api") == "blas":
            threads = library["num_threads"]
            words = [library["internal_api"], library.get("version"), library.get("architecture")]
            count = f"{threads} thread{'s' if threads != 1 else ''}"
            libraries.append(f"{' '.join(str(word) for word in words if word)}, {count}")
    return "; ".join(libraries) or "an unknown BLAS"
