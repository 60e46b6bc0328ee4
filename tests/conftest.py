"""Shared by the tests: where real data lies, how hypothesis searches, and commands that leave nothing."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pslib.config import CACHE_VARIABLE
from tests.support.data.real_data import real_data
from tests.support.machine.kernel_age import older_kernels
from tests.support.models.zoo import Trained, model_named
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import write_counting_examples
from tests.support.queues import queue_of, starts_processes

# No deadline: a loaded machine is no bug. derandomize: every run tries the same examples; `make soak` others.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("PSLIB_HYPOTHESIS_PROFILE", "test"))

REPOSITORY = Path(__file__).resolve().parent.parent

# A shell script ignores Ctrl-C in what it starts with `&`, and processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Say at once what would show as any error at all: Python code that calls kernels of another day."""
    older = ", ".join(older_kernels(REPOSITORY / "cython_ext"))
    return [f"KERNELS ARE OLDER THAN THEIR SOURCES, `make build` compiles them: {older}"] if older else []


@pytest.hookimpl(tryfirst=True)  # before xdist, which looks for marks in this hook too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each file has its queue (``-n 2 --dist loadgroup``); the longest one, of processes, begins first."""
    for item in items:
        if starts_processes(item.path) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.cluster)
        queue = queue_of(item.path)[1]
        item.add_marker(pytest.mark.xdist_group(queue))
    items.sort(key=lambda item: queue_of(item.path)[0])


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for text that tests, and the processes that they start, convert: none of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data; a test that asks for it is skipped, with this reason, where it is absent."""
    return real_data()


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes what it was given at the end, the first first; gives back what it was given."""
    given: list[Any] = []

    def remember(one: Any) -> Any:
        given.append(one)
        return one

    yield remember
    for one in given:
        one.close()


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the counting script: every example has an ``id`` of its own and one of a few ``shared`` values."""
    return write_counting_examples(tmp_path_factory.mktemp("counting") / "examples.parquet")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model of clicks after an epoch, for tests that only read its checkpoint."""
    made = Trained(tmp_path_factory.mktemp("trained"), model_named("deepfm"))
    made.run()
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a command; after the test nothing that it has started may be there."""
    commands: list[Command] = []

    def start_one(*arguments: str | Path, more: Mapping[str, str] | None = None) -> Command:
        commands.append(Command(tmp_path, *arguments, more=more))
        return commands[-1]

    yield start_one
    try:
        for command in commands:
            assert command.process.poll() is not None, f"still running:\n{command.output}"
            assert command.left_over() == []
    finally:
        for command in commands:
            command.clean_up()
