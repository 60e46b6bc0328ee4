"""Reasons to skip a test under AddressSanitizer, whose library `make asan` preloads."""

from __future__ import annotations

import os

import pytest

__all__ = ["COMPILES", "LIMITS_MEMORY", "SHARED_SLABS"]

PRELOADED = "libasan" in os.environ.get("LD_PRELOAD", "")

LIMITS_MEMORY = pytest.mark.skipif(
    PRELOADED,
    reason="the test measures or limits memory: AddressSanitizer keeps freed memory and reserves terabytes "
    "of addresses, so no figure would hold; `make test` runs it",
)
SHARED_SLABS = pytest.mark.skipif(
    PRELOADED,
    reason="the test fills units that a slab has left free: under AddressSanitizer each unit of 8 to 64 rows "
    "is a slab (arena.h), and none is left; `make test` runs it",
)
COMPILES = pytest.mark.skipif(
    PRELOADED,
    reason="the test compiles a program without the sanitizer, and with its library preloaded the compiler "
    "takes minutes (clang more than five); `make test` runs it",
)
