"""Fixtures of the coordinator's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def every_position() -> Iterator[None]:
    """Record each position that a trainer reports, instead of one in five seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pslib.coordinator.journal.POSITIONS_S", 0.0)
        yield
