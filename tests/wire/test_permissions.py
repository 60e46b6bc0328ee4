"""Permissions of the roles: the table, and both sessions that keep to it."""

from __future__ import annotations

import pytest

from pslib.config import ClusterConfig
from pslib.coordinator.session import CoordinatorSession
from pslib.server.session import REQUESTS
from pslib.transport import Peer
from pslib.wire.codec import Codec
from pslib.wire.fields import ROLES, Message
from pslib.wire.messages import ALL_MESSAGES, Failure, Heartbeat, Leave, Register, Stop
from pslib.wire.permissions import refusal
from tests.support.messages import EXAMPLES, example
from tests.support.simulated.protocol_worlds import OneServer

ANSWERS = {"Beat", "Changed", "Clocks", "CutTable", "Done", "Failure", "Hand", "Image", "Lease"} | {
    "Pulled",
    "Pushed",
    "Registered",
    "Result",
}
MOVES = {"Release", "Adopt", "Keep", "NextHand", "Scale"}
ENDS = {"Stop", "DumpStacks"}
READS = {"Pull", "Changes", "Reserve", "Stats", "Status", "JobResult", "Events"}
CODEC = Codec("demo")


def may(role: str) -> set[str]:
    """Kinds that a role may ask, as itself."""
    return {
        one.kind
        for one in EXAMPLES
        if refusal(role, example(type(one), role=role) if hasattr(one, "role") else one) is None
    }


def test_every_message_is_either_an_answer_or_names_its_senders() -> None:
    """A new message must name its senders; until then no client with a key may send it."""
    assert {name for name, kind in ALL_MESSAGES.items() if kind.senders} == set(ALL_MESSAGES) - ANSWERS
    assert all(kind.senders for kind in REQUESTS)


def test_a_reader_only_looks() -> None:
    assert may("reader") == READS


def test_a_trainer_does_all_of_training_and_neither_ends_the_cluster_nor_moves_it() -> None:
    assert may("trainer") == set(ALL_MESSAGES) - ANSWERS - MOVES - ENDS


def test_an_admin_may_ask_everything() -> None:
    assert may("admin") == set(ALL_MESSAGES) - ANSWERS


def test_a_server_is_a_member_that_never_trains() -> None:
    assert may("server") == READS | MOVES | ENDS | {"Register", "Heartbeat", "Leave", "Setup"}


@pytest.mark.parametrize("kind", [Register, Heartbeat, Leave])
def test_a_trainers_key_makes_no_server(kind: type[Message]) -> None:
    """The trainer would be given partitions, and with them what other trainers push."""
    assert refusal("trainer", example(kind, role="trainer")) is None
    refused = refusal("trainer", example(kind, role="server"))
    assert refused is not None
    assert refused.text == "a trainer's key can't be a 'server' of the cluster"
    assert refusal("server", example(kind, role="trainer")) is not None
    assert refusal("admin", example(kind, role="server")) is None


def test_a_refusal_is_one_line_that_says_which_key_it_takes() -> None:
    refused = refusal("reader", Stop("enough", False))
    assert refused == Failure(
        "forbidden", "Stop is for server or admin; this key is a reader's, give another"
    )


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_a_network_without_keys_refuses_no_role(message: Message) -> None:
    assert refusal(None, message) is None


@pytest.mark.parametrize("role", ROLES)
def test_a_server_refuses_before_anything_looks_at_the_message(role: str) -> None:
    session = OneServer().session
    for number, message in enumerate(EXAMPLES):
        expected = refusal(role, message)
        if expected is not None:
            frames = [bytes(frame) for frame in CODEC.encode(number, message)]
            assert session.receive(Peer(b"peer", role), frames) is None
            reply = session.outbox.pop()
            envelope = CODEC.decode([bytes(frame) for frame in reply.frames])
            assert (envelope.request_id, envelope.message) == (number, expected)
            assert expected.code == "forbidden"
            assert "\n" not in expected.text


@pytest.mark.parametrize("role", ROLES)
def test_a_coordinator_refuses_the_same(role: str) -> None:
    session = CoordinatorSession(ClusterConfig())
    for message in EXAMPLES:
        expected = refusal(role, message)
        if expected is not None:
            assert session.handle(0.0, message, role) == expected
    assert (session.members.servers, session.members.trainers, session.registry.jobs) == ([], [], [])
    assert not session.stopping
