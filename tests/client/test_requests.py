"""Requests are asked again, under a new number each time, until they are answered or their time is up."""

from __future__ import annotations

import numpy as np
import pytest

from pslib.client.requests import RequestTable
from pslib.config import Limits, Timing
from pslib.errors import LocalProtocolError
from pslib.wire.codec import Codec
from pslib.wire.messages import Failure, Stats

TIMING = Timing(retry_s=1.0, retry_max_s=4.0, request_s=30.0)
CODEC = Codec("demo", Limits(header_bytes_max=200))


def _table() -> RequestTable:
    return RequestTable(CODEC, TIMING, first_request_id=100)


def _sent(table: RequestTable) -> list[tuple[str, int]]:
    """(peer, request_id) of what is to be sent."""
    outbox, table.outbox = table.outbox, []
    return [(one.peer, CODEC.decode(one.frames).request_id) for one in outbox]


def test_a_request_is_sent_at_once() -> None:
    table = _table()
    table.start(0.0, "a", Stats())
    assert _sent(table) == [("a", 100)]


def test_it_is_asked_again_under_new_numbers_ever_more_slowly() -> None:
    table = _table()
    table.start(0.0, "a", Stats())
    times = []
    for tenth in range(200):
        table.tick(tenth / 10)
        times += [tenth / 10] * len(_sent(table))
    assert times == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    assert table.resent == 6


def test_the_answer_to_any_attempt_ends_it_and_later_answers_belong_to_no_request() -> None:
    table = _table()
    ticket = table.start(0.0, "a", Stats())
    table.tick(1.0)
    assert table.receive(100) == ticket
    assert table.receive(101) is None
    assert table.receive(100) is None
    assert len(table) == 0
    assert not table._by_attempt


def test_two_requests_are_not_mixed_up() -> None:
    table = _table()
    first, second = table.start(0.0, "a", Stats()), table.start(0.0, "b", Stats())
    assert table.receive(101) == second
    assert table.receive(100) == first


def test_it_expires_once_and_says_which_server_was_asked_and_for_how_long() -> None:
    table = _table()
    ticket = table.start(5.0, "a", Stats())
    assert table.tick(34.9) == []
    (expired,) = table.tick(35.0)
    assert (expired.ticket, expired.peer, expired.waited_s) == (ticket, "a", 30.0)
    assert table.tick(36.0) == []
    assert table.receive(100) is None


def test_patience_of_its_own() -> None:
    table = _table()
    table.start(0.0, "a", Stats(), patience_s=2.0)
    assert len(table.tick(2.0)) == 1


def test_a_delayed_request_is_first_sent_later_and_is_not_a_repetition() -> None:
    table = _table()
    table.start(0.0, "a", Stats(), delay_s=0.5)
    assert _sent(table) == []
    table.tick(0.4)
    assert _sent(table) == []
    table.tick(0.5)
    assert _sent(table) == [("a", 100)]
    assert table.resent == 0


def test_a_cancelled_request_is_neither_sent_nor_expired() -> None:
    table = _table()
    table.cancel(table.start(0.0, "a", Stats()))
    _sent(table)
    assert table.tick(100.0) == []
    assert _sent(table) == []
    table.cancel(12345)


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_what_cannot_be_encoded_is_not_remembered(delay_s: float) -> None:
    """Otherwise the thread that sends again would fail over and over."""
    table = _table()
    with pytest.raises(LocalProtocolError):
        table.start(0.0, "a", Failure("internal", "x" * 300), delay_s)
    assert len(table) == 0
    assert table.tick(2.0) == []
    assert _sent(table) == []


def test_requests_say_which_peers_they_wait_for() -> None:
    table = _table()
    table.start(0.0, "a", Stats())
    table.start(8.0, "b", Stats())
    assert table.waiting(10.0, longer_than_s=5.0) == [("a", "Stats", 10.0)]


def test_numbers_go_round_after_64_bits_and_pass_over_0() -> None:
    table = RequestTable(CODEC, TIMING, first_request_id=2**64 - 1)
    table.start(0.0, "a", Stats())
    table.start(0.0, "a", Stats())
    assert [request_id for _peer, request_id in _sent(table)] == [2**64 - 1, 1]


def test_many_requests_in_random_order_all_find_their_ticket() -> None:
    table, order = _table(), np.random.default_rng(1)
    tickets = [table.start(0.0, "a", Stats()) for _ in range(50)]
    for now_s in range(1, 8):
        table.tick(float(now_s))
    sent = _sent(table)
    answered = {table.receive(sent[place][1]) for place in order.permutation(len(sent))}
    assert answered - {None} == set(tickets)


def test_a_peer_that_takes_long_is_given_longer_before_it_is_asked_again() -> None:
    """Second copies would be more work for one that is slow because it has too much of it."""
    table = _table()
    table.start(0.0, "slow", Stats())
    assert table.receive(100, now_s=0.9) is not None
    table.start(1.0, "slow", Stats())
    table.start(1.0, "other", Stats())
    _sent(table)
    table.tick(3.0)
    assert [peer for peer, _id in _sent(table)] == ["other"]
    table.tick(3.8)
    assert [peer for peer, _id in _sent(table)] == ["slow"]


@pytest.mark.parametrize(
    ("took_s", "patience", "asked_again_s"), [(29.0, {}, 5.0), (9.0, {"patience_s": 6.0}, 1.0)]
)
def test_it_is_asked_again_within_a_sixth_of_its_patience_however_slow_it_was(
    took_s: float, patience: dict[str, float], asked_again_s: float
) -> None:
    """A heartbeat that is lost after a slow one must not wait until its sender counts as lost."""
    table = _table()
    table.start(0.0, "slow", Stats())
    assert table.receive(100, now_s=took_s) is not None
    table.start(took_s + 1.0, "slow", Stats(), **patience)
    _sent(table)
    table.tick(took_s + 1.0 + asked_again_s)
    assert len(_sent(table)) == 1


# --- a peer that another process has taken the place of ---


def test_what_waits_for_a_peer_is_asked_of_its_successor_at_once() -> None:
    table = _table()
    ticket, other = table.start(0.0, "a", Stats()), table.start(0.0, "c", Stats())
    _sent(table)
    assert table.redirect(20.0, "a", "b") == 1
    assert _sent(table) == [("b", 102)]
    assert table.receive(100) is None  # what the old one says now counts no more
    assert table.receive(102) == ticket
    assert table.receive(101) == other


def test_it_has_its_whole_patience_again() -> None:
    table = _table()
    table.start(0.0, "a", Stats())
    table.redirect(29.0, "a", "b")
    assert table.tick(58.9) == []
    assert [one.peer for one in table.tick(59.0)] == ["b"]


def test_the_old_address_later_means_the_successor_of_the_successor() -> None:
    table = _table()
    table.redirect(0.0, "a", "b")
    table.redirect(1.0, "b", "c")
    for peer in ("a", "b", "c"):
        table.start(2.0, peer, Stats())
    assert [peer for peer, _ in _sent(table)] == ["c", "c", "c"]
    table.redirect(3.0, "x", "a")  # another process got that port
    table.cancel_all()
    table.start(4.0, "a", Stats())
    assert [peer for peer, _ in _sent(table)] == ["a"]


def test_what_was_to_be_sent_later_still_is() -> None:
    table = _table()
    table.start(0.0, "a", Stats(), delay_s=5.0)
    table.redirect(1.0, "a", "b")
    assert _sent(table) == []
    table.tick(5.0)
    assert [peer for peer, _ in _sent(table)] == ["b"]


def test_the_credit_of_the_old_address_is_forgotten_and_the_order_kept() -> None:
    cost = sum(map(len, CODEC.encode(100, Stats()))) + 1000
    table = RequestTable(CODEC, TIMING, first_request_id=100, share_bytes=2 * cost + 10)
    tickets = [table.start(0.0, "a", Stats(), answer_bytes=1000) for _ in range(5)]
    sent_before = len(_sent(table))
    assert 0 < sent_before < 5
    assert table.unsent_bytes == (5 - sent_before) * cost
    table.redirect(1.0, "a", "b")
    assert table.unsent_bytes == (5 - sent_before) * cost
    assert table.shares.in_flight_bytes("a") == 0
    table.redirect(1.5, "b", "a")
    _sent(table)
    table.redirect(2.0, "a", "b")
    answered = []
    while sent := _sent(table):
        assert {peer for peer, _ in sent} == {"b"}
        answered += [table.receive(request_id) for _, request_id in sent]
    assert answered == tickets
    assert (table.unsent_bytes, table.shares.in_flight_bytes("b")) == (0, 0)


def test_room_is_waited_for_from_the_first_refusal_on_and_no_longer() -> None:
    table = _table()
    table.space_s = 10.0
    ticket = table.start(0.0, "a", Stats(), patience_s=100.0)
    expired: list[tuple[float, str]] = []
    for second in range(1, 40):
        expired += [(second, one.why) for one in table.tick(second) if one.ticket == ticket]
        for _peer, request_id in _sent(table):
            table.refused_for_now(request_id, "no space")
    assert expired == [(11, "no space")]


def refused_once(patience_s: float) -> RequestTable:
    """Room is waited for for 10 s; a request of the beginning has been refused after a second."""
    table = _table()
    table.space_s = 10.0
    table.start(0.0, "a", Stats(), patience_s=patience_s)
    table.tick(1.0)
    assert table.refused_for_now(_sent(table)[-1][1], "no space")
    return table


def test_a_peer_that_refused_once_and_answers_no_more_is_waited_for_as_one_that_never_has() -> None:
    table = refused_once(100.0)
    expired = [(second, one.why) for second in range(2, 120) for one in table.tick(second)]
    assert expired == [(100, "")]


def test_a_successor_is_no_longer_the_one_that_refused() -> None:
    table = refused_once(20.0)
    table.redirect(5.0, "a", "b")
    times, expired = list[int](), list[tuple[int, str]]()
    for second in range(6, 80):
        expired += [(second, one.why) for one in table.tick(second)]
        for _peer, request_id in _sent(table):
            times.append(second)
            table.refused_for_now(request_id, "none here either")
    assert expired == [(times[0] + 10, "none here either")]
