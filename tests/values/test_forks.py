"""A process that was forked from a trainer: told at once that the connection is not its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

import pslib

KEYS = np.arange(5, dtype=np.uint64)
TABLE = pslib.TableSpec("item", (pslib.PartSpec("v", 2, initializer=pslib.Constant(1.0)),))


def in_a_fork(what: Callable[[], object]) -> str:
    """Return the error that a call raises in a fork, or an empty text; a signal ends it after 10 seconds."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            what()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        text = told.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, "it has waited for 10 seconds"
    return text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_told_to_connect_by_itself_and_leaves_its_parent_alone() -> None:
    with pslib.connect() as cluster:
        client = cluster.client
        client.setup([TABLE])
        for call in (
            lambda: client.pull({"item": KEYS}).wait(),
            lambda: client.push({"item": (KEYS, np.ones((5, 2), np.float32))}).wait(),
            client.stats,
        ):
            line = in_a_fork(call)
            assert line.startswith(
                "ConfigurationError: this process is a fork of one that belongs to a cluster"
            )
        assert in_a_fork(cluster.close) == ""
        assert client.pull({"item": KEYS}).wait().rows["item"].tolist() == [[1, 1]] * 5
        assert client.stats()["pushes_applied"] == 0
