"""Shared settings of the tests: where real data lies, and how hypothesis searches."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a loaded machine is no bug. derandomize: every run tries the same examples; `make soak` others.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("PSLIB_HYPOTHESIS_PROFILE", "test"))

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data; a test that asks for it is skipped, with this reason, where it is absent."""
    folder = Path(os.environ.get("PSLIB_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(
            f"published data whose terms forbid handing it on, so this repository can't carry it; none at "
            f"{folder}: set PSLIB_TEST_DATA to a folder that has it"
        )
    return folder.resolve()
