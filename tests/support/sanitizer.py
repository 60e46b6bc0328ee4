"""Reasons to skip a test under AddressSanitizer, whose library `make asan` preloads."""

from __future__ import annotations

import os

import pytest

__all__ = ["COMPILES", "EACH_A_SLAB", "LIMITS_MEMORY"]

PRELOADED = "libasan" in os.environ.get("LD_PRELOAD", "")

LIMITS_MEMORY = pytest.mark.skipif(
    PRELOADED,
    reason="the test measures or limits memory: the address sanitizer keeps what is freed in quarantine and "
    "reserves terabytes of addresses; the plain build runs it",
)
EACH_A_SLAB = pytest.mark.skipif(
    PRELOADED, reason="with the address sanitizer each unit is a slab of its own; the plain build runs it"
)
COMPILES = pytest.mark.skipif(
    PRELOADED,
    reason="the test compiles a program of its own, without the sanitizer; a compiler with the library "
    "preloaded takes minutes (clang more than five); the plain build runs it",
)
