"""Which calls are short, what of their answers is taken by compiled code, and what unfolds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cython_ext.short_frames import ShortCall
from pslib.errors import LocalProtocolError, PslibError
from pslib.protocol.calls import Counts, Manner, Moment
from pslib.protocol.client_session import ClientSession, PushName
from pslib.protocol.messages import Failure, Pulled, Pushed
from pslib.protocol.request_records import Outgoing
from pslib.protocol.requests import RequestTable
from pslib.table.partition_map import PartitionMap
from tests.protocol_worlds import (
    CODEC,
    NO_FLOATS,
    NO_OWNERS,
    NO_UNITS,
    TIMING,
    answer,
    asked,
    completed,
    key_in,
    keys_in,
    make_client,
)

DIM = 3
ALL_TAKEN = Pushed(NO_UNITS, NO_OWNERS, 4)


def pulled_rows(count: int, dim: int = DIM) -> Pulled:
    rows = np.arange(count * dim, dtype=np.float32).reshape(count, dim)
    return Pulled({"t": rows}, NO_FLOATS, NO_UNITS, NO_OWNERS, pushes_before=3)


def short_parts(client: ClientSession) -> int:
    """Parts that are on their way by compiled code."""
    assert client.requests.short is not None
    return len(client.requests.short)


# --- what is short ------------------------------------------------------------------------------------------


def _rows(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones((count, DIM), np.float32)


def test_plain_pulls_and_pushes_of_few_rows_are_short() -> None:
    client = make_client(2, {"t": DIM})
    client.pull(0.0, {"t": keys_in(0, 9)})
    client.push(0.0, PushName(7, 0), {"t": (keys_in(0), _rows(1))})
    assert short_parts(client) == 3
    assert len(client.requests) == 3


def test_all_others_are_not() -> None:
    client = make_client(2, {"t": DIM, "u": DIM}, dense_length=8)
    keys, many = keys_in(0, 9), np.arange(2000, dtype=np.uint64)
    name = PushName(7, 0)
    client.pull(0.0, {"t": keys, "u": keys})
    client.pull(0.0, {"t": keys}, dense=True)
    client.pull(0.0, {"t": keys}, rows_as="bfloat16")
    client.pull(0.0, {"t": many})
    client.pull(0.0, {"t": keys[:0]})
    client.erase(0.0, name, {"t": keys})
    client.push(0.0, name, {"t": (keys, _rows(2))}, np.ones(8, np.float32))
    client.push(0.0, name, {"t": (keys, _rows(2))}, manner=Manner(rate=0.5))
    client.push(0.0, name, {"t": (many, _rows(2000))})
    counts = {"t": Counts(np.ones(2, np.float32), np.zeros(2, np.float32))}
    client.push(0.0, name, {"t": (keys, _rows(2))}, counts=counts)
    assert short_parts(client) == 0
    assert len(client.requests) == 18


def test_one_part_that_is_too_long_makes_no_part_short() -> None:
    client = make_client(2, {"t": DIM})
    few, many = keys_in(9), np.arange(5000, dtype=np.uint64)
    long = np.concatenate([few, many[: 8192 // (4 * DIM) * 2 + 2]])
    client.pull(0.0, {"t": long})
    assert short_parts(client) == 0
    assert sorted(asked(client)) == ["0", "1"]


def test_a_part_of_too_many_keys_is_not_short_however_narrow_its_rows() -> None:
    client = make_client(2, {"one": 1})
    mine = np.array([key_in(0, number) for number in range(1025)], np.uint64)
    client.pull(0.0, {"one": mine[:1024]})
    assert short_parts(client) == 1
    client.pull(0.0, {"one": mine})
    assert short_parts(client) == 1


@pytest.mark.parametrize("time_s", [-1.0, 1e13])
def test_a_time_that_servers_refuse_is_left_to_the_codec_and_to_them(time_s: float) -> None:
    client = make_client(1, {"t": DIM})
    client.pull(0.0, {"t": keys_in(0)}, moment=Moment(0, time_s))
    assert short_parts(client) == 0
    assert asked(client)["0"][1].time_s == time_s


def test_what_is_not_small_for_the_credit_is_not_short() -> None:
    client = make_client(1, {"t": DIM})
    client.requests.shares.share_bytes, client.requests.shares.small_bytes = 1 << 20, 60
    client.pull(0.0, {"t": keys_in(0)})
    assert short_parts(client) == 0
    client.requests.shares.small_bytes = 150
    client.pull(0.0, {"t": keys_in(0)})
    assert short_parts(client) == 1


def test_where_numbers_of_requests_begin_anew_the_definition_counts() -> None:
    requests = RequestTable(CODEC, TIMING, first_request_id=(1 << 64) - 1)
    client = ClientSession(requests, make_client(1, {"t": DIM}).map, {"t": DIM}, 0)
    for shorts, number in ((0, (1 << 64) - 1), (1, 1)):  # 0 answers what could not be read
        client.pull(0.0, {"t": keys_in(0)})
        assert short_parts(client) == shorts
        assert asked(client)["0"][0] == number


def test_without_room_for_all_parts_none_is_sent_past_the_credit() -> None:
    client = make_client(2, {"t": DIM})
    client.requests.shares.share_bytes = 150
    client.pull(0.0, {"t": keys_in(9)})
    assert short_parts(client) == 1
    client.pull(0.0, {"t": keys_in(0, 9)})
    client.pull(0.0, {"t": keys_in(0)})
    assert short_parts(client) == 1, "what waits for credit is not passed"
    assert client.requests.unsent_bytes > 0


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_no_byte_of_an_answer_can_be_another_without_the_definition_seeing_it(kind: str) -> None:
    """What compiled code takes of changed bytes, the definition takes too, and finds the same."""
    taken = 0
    good = CODEC.encode(1, pulled_rows(2) if kind == "pull" else ALL_TAKEN)
    (frame,) = (bytes(one) for one in good)
    for place in range(len(frame)):
        for change in (1, 0x80, 0xFF):
            bad = frame[:place] + bytes([frame[place] ^ change]) + frame[place + 1 :]
            ends = []
            for way in ("short", "definition"):
                client = make_client(1, {"t": DIM})
                call = _begin(client, kind)
                rest: list[Any] = [(None, [bad])]
                if way == "short":
                    rest = client.receive_short(0.1, rest)
                    taken += not rest
                ends.append(_outcome(client, kind, call, rest))
            assert ends[0] == ends[1], (place, change)
    assert taken > 0, "rows may hold anything"


def _begin(client: ClientSession, kind: str) -> int:
    if kind == "pull":
        return client.pull(0.0, {"t": keys_in(0, 1)})
    return client.push(0.0, PushName(7, 0), {"t": (keys_in(0, 1), _rows(2))})


def _outcome(client: ClientSession, kind: str, call: int, rest: list[Any]) -> Any:
    for _peer, frames in rest:
        try:
            envelope = CODEC.decode(frames)
        except PslibError as error:
            return str(error)
        ticket = client.requests.receive(envelope.request_id)
        if ticket is None:
            return "of nobody"
        client.receive(0.1, ticket, envelope.message)
    over = completed(client)
    rows = client.pulled(call) if kind == "pull" and over == [(call, None)] else None
    return over, rows and (rows.rows["t"].tobytes(), dict(rows.seen)), client.acked_below(7)


@pytest.mark.parametrize("end", [1, 7, 24])
@pytest.mark.parametrize("kind", ["pull", "push"])
def test_an_answer_that_is_cut_off_or_too_long_is_left_to_the_definition(kind: str, end: int) -> None:
    client = make_client(1, {"t": DIM})
    _begin(client, kind)
    (frame,) = (bytes(one) for one in CODEC.encode(1, pulled_rows(2) if kind == "pull" else ALL_TAKEN))
    came: list[Any] = [(None, [frame[:-end]]), (None, [frame + bytes(end)]), (None, [frame, b""])]
    if kind == "pull":  # as long as it says, but not as its rows say
        rows = 4 * 2 * DIM
        came.append((None, [frame[: -rows - 1] + bytes([rows + end]) + bytes(rows + end)]))
    assert client.receive_short(0.1, came) == came
    assert short_parts(client) == 1


def test_an_answer_counts_once() -> None:
    client = make_client(1, {"t": DIM})
    call = client.pull(0.0, {"t": keys_in(0, 1)})
    (frame,) = (bytes(one) for one in CODEC.encode(1, pulled_rows(2)))
    came: list[Any] = [(None, [frame]), (None, [frame])]
    assert client.receive_short(0.1, came) == came[:1]
    assert completed(client) == [(call, None)]


def test_whoever_asks_what_a_server_has_acknowledged_hears_of_parts_of_calls_that_go_on() -> None:
    """A server's successor is asked for them at any moment: one that was left out could be lost unseen."""
    client = make_client(2, {"t": DIM})
    client.push(0.0, PushName(7, 3), {"t": (keys_in(0, 9), _rows(2))})
    number = asked(client)["0"][0]
    short = client.requests.short
    assert short is not None
    assert short.receive(0.1, [(None, [bytes(one) for one in CODEC.encode(number, ALL_TAKEN)])]) == []
    assert completed(client) == []
    assert client.acknowledged.question(1) is None
    question = client.acknowledged.question(0)
    assert question is not None
    assert (question.streams.tolist(), question.numbers.tolist()) == ([7], [3])


# --- what unfolds a call ------------------------------------------------------------------------------------


def _half_answered() -> tuple[ClientSession, int, dict[str, tuple[int, Any]]]:
    """A pull of two parts of which one has come."""
    client = make_client(2, {"t": DIM})
    call = client.pull(0.0, {"t": keys_in(9, 0)})
    messages = asked(client)
    assert answer(client, 0.1, messages["1"][0], pulled_rows(1))
    assert short_parts(client) == 1
    return client, call, messages


def test_a_second_try_leaves_the_first_one_valid() -> None:
    client, call, messages = _half_answered()
    client.requests.tick(TIMING.retry_s)
    (again,) = asked(client).values()
    assert again[0] != messages["0"][0]
    assert again[1].keys["t"].tolist() == messages["0"][1].keys["t"].tolist()
    assert short_parts(client) == 0
    assert answer(client, 1.1, messages["0"][0], pulled_rows(1))
    assert completed(client) == [(call, None)]
    assert client.pulled(call).rows["t"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert not answer(client, 1.2, again[0], pulled_rows(1))


def test_a_peer_that_is_given_up_ends_its_part() -> None:
    client, _call, _messages = _half_answered()
    assert len(client.requests.give_up("0")) == 1
    assert len(client.requests) == 0
    assert client.requests.shares.in_flight_bytes("0") == 0


def test_a_peer_that_has_moved_is_asked_where_it_is_now() -> None:
    client, call, messages = _half_answered()
    assert client.requests.redirect(0.5, "0", "2") == 1
    assert not answer(client, 0.6, messages["0"][0], pulled_rows(1)), (
        "what the old one answers counts no more"
    )
    ((peer, (request_id, _message)),) = asked(client).items()
    assert peer == "2"
    assert answer(client, 0.7, request_id, pulled_rows(1))
    assert completed(client) == [(call, None)]
    client.pull(1.0, {"t": keys_in(0)})
    assert list(asked(client)) == ["2"], "and so is whoever asks later"


def test_a_failure_ends_the_call_and_no_other_part_of_it_is_waited_for() -> None:
    client = make_client(2, {"t": DIM})
    call = client.push(0.0, PushName(7, 0), {"t": (keys_in(9, 0), _rows(2))})
    messages = asked(client)
    assert answer(client, 0.1, messages["0"][0], Failure("internal", "no"))
    assert completed(client) == [(call, "0: no")]
    assert not answer(client, 0.2, messages["1"][0], ALL_TAKEN)
    assert len(client.requests) == 0
    assert [client.requests.shares.in_flight_bytes(peer) for peer in "01"] == [0, 0]


def test_who_is_told_for_what_is_waited_hears_of_short_calls_too() -> None:
    client, _call, _messages = _half_answered()
    assert client.requests.waiting(0.5, 0.6) == []
    assert short_parts(client) == 1
    assert client.requests.waiting(0.9, 0.6) == [("0", "Pull", 0.9)]


def test_nothing_is_left_when_all_is_given_up() -> None:
    client, _call, messages = _half_answered()
    assert client.requests.shares.in_flight_bytes("0") > 0
    client.requests.cancel_all()
    assert len(client.requests) == 0
    assert client.requests.shares.in_flight_bytes("0") == 0
    late: list[Any] = [(None, [bytes(one) for one in CODEC.encode(messages["0"][0], pulled_rows(1))])]
    assert client.receive_short(1.0, late) == late
    assert client.requests.receive(messages["0"][0]) is None


@pytest.mark.parametrize("stream", [1.5, np.uint64(7), True])
def test_a_name_that_is_no_int_is_refused_in_the_words_of_the_codec(stream: Any) -> None:
    client = make_client(1, {"t": DIM})
    with pytest.raises(LocalProtocolError, match="stream"):
        client.push(0.0, PushName(stream, 0), {"t": (keys_in(0), _rows(1))})
    assert len(client.requests) == 0
    assert client.requests.outbox == []


def test_a_table_may_be_named_by_another_kind_of_str() -> None:
    client = make_client(1, {"t": DIM})
    call = client.pull(0.0, {np.str_("t"): keys_in(0)})
    assert answer(client, 0.1, asked(client)["0"][0], pulled_rows(1))
    assert completed(client) == [(call, None)]


def test_calls_are_short_again_when_a_map_says_where_a_peer_has_moved() -> None:
    client = make_client(2, {"t": DIM})
    client.requests.redirect(0.0, "0", "2")
    client.pull(0.1, {"t": keys_in(0)})
    assert short_parts(client) == 0
    owners, version = client.map.owners, client.map.version + 1
    client.set_map(0.2, PartitionMap(version, client.map.partition_bits, owners, ("2", "1")))
    client.pull(0.3, {"t": keys_in(0, 9)})
    assert short_parts(client) == 2


def test_an_answer_is_taken_by_the_session_that_asked() -> None:
    """Each call knows its session, were there two; `Client.setup` lets none be open."""
    old = make_client(1, {"t": DIM})
    new = ClientSession(old.requests, old.map, {"t": DIM}, 0)
    first = old.pull(0.0, {"t": keys_in(0)})
    assert first == new.pull(0.0, {"t": keys_in(0)})
    frames = [[bytes(one) for one in CODEC.encode(number, pulled_rows(1))] for number in (1, 2)]
    assert new.receive_short(0.1, [(None, list(frames[0]))]) == []
    assert completed(new) == []
    assert completed(old) == [(first, None)]
    assert new.receive_short(0.1, [(None, list(frames[1]))]) == []
    assert completed(new) == [(first, None)]
    assert new.pulled(first).rows["t"].tolist() == [[0, 1, 2]]
    name, pair = PushName(7, 0), {"t": (keys_in(0), _rows(1))}
    for one in (old, new):
        one.push(1.0, name, pair)
    frame = [bytes(one) for one in CODEC.encode(3, ALL_TAKEN)]
    assert new.receive_short(1.1, [(None, list(frame))]) == []
    assert (old.acked_below(7), new.acked_below(7)) == (1, 0)
    assert old.acknowledged.question(0) is not None
    assert new.acknowledged.question(0) is None
    old.push(1.2, PushName(7, 1), pair)
    for session, number in ((new, 4), (old, 5)):  # unfolded
        ticket = new.requests.receive(number)
        assert ticket is not None
        assert session.receive(1.3, ticket, ALL_TAKEN)
    assert (old.acked_below(7), new.acked_below(7)) == (2, 1)


# --- arguments ----------------------------------------------------------------------------------------------


def _call(**change: Any) -> ShortCall:
    made = {
        "owner": None,
        "number": 1,
        "table": "t",
        "keys": keys_in(0, 1),
        "rows": _rows(2),
        "order": np.zeros(2, np.int32),
        "starts": np.array([0, 2], np.int64),
        "named": (1, 2, 3, 4, 5),
        "moment": (0, 0.0),
        "memory": None,
    }
    return ShortCall(*(made | change).values())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": _rows(1)}, "rows: expected one a key"),
        ({"order": np.zeros(1, np.int32)}, "order: expected 2 places"),
        ({"starts": np.array([0, 1], np.int64)}, "starts: expected 0 up to 2"),
        ({"starts": np.array([2], np.int64)}, "starts: expected 0 up to 2"),
        ({"starts": np.array([0, 9, 2], np.int64)}, "starts: expected them to rise"),
        ({"order": np.array([0, 2], np.int32)}, "order: expected places below 2, got 2"),
        ({"order": np.array([-1, 0], np.int32)}, "order: expected places below 2, got -1"),
        ({"table": "t" * 300}, "at most 255 bytes"),
        ({"table": np.str_("t")}, "table: expected a str, got str_"),
        ({"named": (1.5, 2, 3, 4, 5)}, "expected an int in 0..2.64-1, got 1.5"),
        ({"named": (1, np.uint64(2), 3, 4, 5)}, "expected an int"),
        ({"named": (1, 2, -1, 4, 5)}, "expected an int in 0..2.64-1, got -1"),
        ({"named": (1, 2, 3, 1 << 64, 5)}, "expected an int"),
        ({"named": (1, 2, 3, 4, True)}, "expected an int"),
        ({"moment": (-1, 0.0)}, "expected an int"),
        ({"moment": (0, 1)}, "time: expected a float, got int"),
    ],
)
def test_a_call_that_is_not_what_messages_hold_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _call(**change)


def test_a_call_to_more_servers_than_there_are_addresses_is_refused() -> None:
    short = CODEC.short_calls({}, {}, {})
    assert short is not None
    call = _call(starts=np.array([0, 1, 2], np.int64))
    with pytest.raises(ValueError, match="addresses: expected 2, got 1"):
        short.begin(call, ["a"], 1, (0, 1000), (0.0, 1.0, 3.0, 30.0), Outgoing)
    assert len(short) == 0
