"""Which short requests go by a lane: those that overtake nothing of their client on its way there."""

from __future__ import annotations

from pslib.protocol.client_session import ClientSession
from pslib.protocol.messages import Pull, Stats
from pslib.protocol.request_records import Outgoing, ShortOutgoing
from pslib.protocol.requests import LOOKED_THROUGH_MAX
from tests.protocol_worlds import CODEC, answer, asked, keys_in, make_client
from tests.test_short_calls import DIM, pulled_rows, short_parts


def _kinds(client: ClientSession) -> list[type]:
    """How the requests go that are to be sent, and forget them."""
    kinds = [type(one) for one in client.requests.outbox]
    client.requests.outbox.clear()
    return kinds


def _with_lanes(*peers: str) -> ClientSession:
    client = make_client(2, {"t": DIM})
    client.requests.lanes = {peer: b"lane" for peer in peers}
    return client


def _answer_all(client: ClientSession) -> None:
    outbox, client.requests.outbox = client.requests.outbox, []
    for one in outbox:
        request_id, message = CODEC.decode([bytes(frame) for frame in one.frames])
        assert isinstance(message, Pull)
        answer(client, 0.1, request_id, pulled_rows(message.keys["t"].size))


def test_short_requests_go_by_lanes_to_those_who_have_one() -> None:
    client = _with_lanes("1")
    client.pull(0.0, {"t": keys_in(0, 9)})
    assert sorted((one.peer, type(one)) for one in client.requests.outbox) == [
        ("0", Outgoing),
        ("1", ShortOutgoing),
    ]


def test_nothing_goes_by_a_lane_past_a_request_that_is_on_its_way_without_it() -> None:
    client = _with_lanes("0", "1")
    ticket = client.requests.start(0.0, "0", Stats())
    client.requests.outbox.clear()
    client.pull(0.0, {"t": keys_in(0, 9)})
    assert _kinds(client) == [Outgoing, ShortOutgoing]
    client.requests.cancel(ticket)
    client.pull(0.0, {"t": keys_in(9)})
    assert _kinds(client) == [ShortOutgoing]
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [Outgoing], "the first pull is on its way without a lane still"


def test_a_short_request_without_a_lane_keeps_others_behind_it_until_it_is_over() -> None:
    client = _with_lanes()
    client.pull(0.0, {"t": keys_in(0)})
    client.requests.lanes = {"0": b"lane"}
    client.pull(0.0, {"t": keys_in(0)})
    assert [type(one) for one in client.requests.outbox] == [Outgoing, Outgoing]
    _answer_all(client)
    assert short_parts(client) == 0
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [ShortOutgoing]


def test_so_does_one_that_is_asked_again_until_it_is_answered() -> None:
    client = _with_lanes()
    client.pull(0.0, {"t": keys_in(0)})
    client.requests.lanes = {"0": b"lane"}
    client.requests.unfold_older()
    ((request_id, _message),) = asked(client).values()
    client.pull(0.0, {"t": keys_in(0)})
    assert [type(one) for one in client.requests.outbox] == [Outgoing]
    answer(client, 0.1, request_id, pulled_rows(1))
    _answer_all(client)
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [ShortOutgoing]


def test_what_is_forgotten_keeps_nothing_back() -> None:
    client = _with_lanes()
    client.pull(0.0, {"t": keys_in(0)})
    client.requests.cancel_all()
    client.requests.outbox.clear()
    client.requests.lanes = {"0": b"lane"}
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [ShortOutgoing]


def test_of_very_many_requests_any_may_be_to_any_peer() -> None:
    """To look through all of them would cost more than a lane saves."""
    client = _with_lanes("0")
    tickets = [client.requests.start(0.0, "1", Stats()) for _ in range(LOOKED_THROUGH_MAX + 1)]
    client.requests.outbox.clear()
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [Outgoing]
    client.requests.cancel_all()
    assert tickets
    for _ in range(LOOKED_THROUGH_MAX):
        client.requests.start(0.0, "1", Stats())
    client.requests.outbox.clear()
    client.pull(0.0, {"t": keys_in(0)})
    assert _kinds(client) == [ShortOutgoing]
