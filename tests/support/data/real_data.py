"""Published data that tests read where it is present; its terms forbid that this repository carries it.

Each measurement on real data has a test on generated data as well, which runs everywhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["real_data"]

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("PSLIB_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


def real_data(name: str = "") -> Path:
    """A file or folder of it; where it is absent the test is skipped, with this reason."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(
            f"{name or FOLDER}: published data whose terms forbid handing it on, so this repository can't "
            "carry it; the same code is tested on data that is made here, everywhere; set PSLIB_TEST_DATA to "
            "a folder that has it to test both"
        )
    return path.resolve()
