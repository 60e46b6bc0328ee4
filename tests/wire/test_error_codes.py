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
    "kind", [AccessError, CheckpointError, ConfigurationError, LogFullError, MemoryLimitError]
)
def test_an_error_of_a_server_is_the_same_error_at_who_asked(kind):
    error = error_of(failure_of(kind("no")), PEER)
    assert type(error) is kind
    assert str(error) == f"{PEER}: no"


@pytest.mark.parametrize(
    ("special", "kind"), [(DataError, ConfigurationError), (CheckpointCorruptError, CheckpointError)]
)
def test_a_special_error_is_the_one_that_it_derives_from(special, kind):
    assert type(error_of(failure_of(special("no")), PEER)) is kind


def test_what_is_no_error_of_ours_is_told_as_a_fault():
    assert failure_of(ValueError("odd")) == Failure("internal", "ValueError: odd")
    assert failure_of(FencedError("late")) == Failure("fenced", "late")


@pytest.mark.parametrize("code", ["unavailable", "internal", "of a later version"])
def test_a_refusal_without_an_error_of_its_own_is_that_somebody_is_not_available(code):
    assert type(error_of(Failure(code, "no"), PEER)) is UnavailableError


def test_who_is_fenced_hears_that_others_have_its_work():
    assert type(error_of(failure_of(FencedError("late")), PEER)) is SupersededError
    assert issubclass(SupersededError, UnavailableError)


def test_what_a_peer_could_not_read_is_an_error_of_the_protocol():
    assert type(error_of(Failure("protocol", "no"), PEER)) is RemoteProtocolError


def test_a_thread_of_this_process_is_not_named():
    assert str(error_of(Failure("configuration", "no"), "memory:0")) == "no"


def test_a_refusal_that_quotes_much_is_cut_and_other_answers_are_left():
    assert fitting(Failure("internal", "x" * 5000)) == Failure("internal", "x" * 1000)
    assert fitting(Done()) == Done()
