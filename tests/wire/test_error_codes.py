"""Refusals and errors: what is raised at one end is raised at the other."""

import pytest

from pslib.errors import (
    AccessError,
    CheckpointCorruptError,
    CheckpointError,
    ConfigurationError,
    DataError,
    LogFullError,
    MemoryLimitError,
    RemoteProtocolError,
    SupersededError,
    UnavailableError,
)
from pslib.wire.applied_pushes import FencedError
from pslib.wire.error_codes import error_of, failure_of, fitting
from pslib.wire.messages import Done, Failure

PEER = "tcp://10.0.0.2:7000"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (AccessError, AccessError),
        (CheckpointError, CheckpointError),
        (ConfigurationError, ConfigurationError),
        (LogFullError, LogFullError),
        (MemoryLimitError, MemoryLimitError),
        (DataError, ConfigurationError),
        (CheckpointCorruptError, CheckpointError),
        (FencedError, SupersededError),
        (ValueError, UnavailableError),
    ],
)
def test_an_error_of_a_server_is_that_error_at_the_client_or_what_it_derives_from(raised, expected):
    failure = failure_of(raised("no"))
    error = error_of(failure, PEER)
    assert type(error) is expected
    assert str(error) == f"{PEER}: {failure.text}"


def test_an_error_that_is_not_of_pslib_is_an_internal_one():
    assert failure_of(ValueError("odd")) == Failure("internal", "ValueError: odd")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("unavailable", UnavailableError),
        ("of a later version", UnavailableError),
        ("protocol", RemoteProtocolError),
    ],
)
def test_a_code_without_an_error_of_a_server(code, expected):
    assert type(error_of(Failure(code, "no"), PEER)) is expected


def test_a_fenced_client_is_one_that_may_connect_again():
    assert issubclass(SupersededError, UnavailableError)


def test_a_thread_of_this_process_is_not_named():
    assert str(error_of(Failure("configuration", "no"), "memory:0")) == "no"


def test_a_refusal_that_quotes_much_is_cut_and_other_answers_are_left():
    assert fitting(Failure("internal", "x" * 5000)) == Failure("internal", "x" * 1000)
    assert fitting(Done()) == Done()
