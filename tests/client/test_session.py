"""The client's machine, scene by scene: its requests to each server, and its use of the answers."""

from __future__ import annotations

import numpy as np
import pytest

from pslib.client.calls import PushName
from pslib.client.requests import RequestTable
from pslib.client.session import ClientSession
from pslib.config import Limits
from pslib.errors import (
    ConfigurationError,
    LocalProtocolError,
    SupersededError,
    UnavailableError,
    UnknownTableError,
    WaitTimeoutError,
)
from pslib.table.partition_map import PartitionMap
from pslib.wire.codec import Codec
from pslib.wire.messages import NOBODY, Done, Erase, Failure, Pull, Pulled, Push, Pushed
from tests.support.simulated.protocol_worlds import (
    TIMING,
    answer,
    asked,
    completed,
    key_in,
    keys_in,
    make_client,
)

NO_UNITS, NO_OWNERS, NO_FLOATS = np.empty(0, np.uint32), np.empty(0, np.uint16), np.empty(0, np.float32)
ALL_TAKEN = Pushed(NO_UNITS, NO_OWNERS)


def _refused(**owners: int) -> Pushed:
    """Refused units, written u3=1: unit 3 belongs to server 1."""
    units = [int(name[1:]) for name in owners]
    return Pushed(np.array(units, np.uint32), np.array(list(owners.values()), np.uint16))


def _ones(count: int, dim: int = 1) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.ones((count, dim), np.float32)


class TestSplit:
    def test_a_pull_asks_each_owner_for_its_keys_in_their_order(self) -> None:
        client = make_client(2, {"t": 1})
        client.pull(0.0, {"t": keys_in(9, 1, 15, 0)})
        messages = asked(client)
        assert messages["0"][1].keys["t"].tolist() == keys_in(1, 0).tolist()
        assert messages["1"][1].keys["t"].tolist() == keys_in(9, 15).tolist()

    def test_rows_come_back_in_the_order_of_the_keys_whichever_server_answers_first(self) -> None:
        client = make_client(2, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(9, 1, 15, 1)})
        messages = asked(client)
        for server, rows in (("1", [[9.0], [15.0]]), ("0", [[1.0], [1.0]])):
            assert completed(client) == []
            rows32 = np.array(rows, np.float32)
            answer(client, 0.1, messages[server][0], Pulled({"t": rows32}, NO_FLOATS, NO_UNITS, NO_OWNERS))
        assert completed(client) == [(call, None)]
        assert client.pulled(call).rows["t"].ravel().tolist() == [9.0, 1.0, 15.0, 1.0]

    def test_one_message_a_server_carries_all_tables_and_blocks(self) -> None:
        client = make_client(2, {"t": 1, "u": 2}, dense_length=4)
        client.pull(0.0, {"t": keys_in(0), "u": keys_in(1, 9)}, dense=True)
        messages = asked(client)
        assert sorted(messages) == ["0", "1"]
        assert sorted(messages["0"][1].keys) == ["t", "u"]
        assert sorted(messages["1"][1].keys) == ["u"]
        assert messages["0"][1].blocks.tolist() == [0, 2]

    def test_gradients_go_with_their_keys(self) -> None:
        client = make_client(2, {"t": 1})
        gradients = np.array([[9.0], [1.0], [15.0]], np.float32)
        client.push(0.0, PushName(7, 0), {"t": (keys_in(9, 1, 15), gradients)})
        messages = asked(client)
        assert messages["1"][1].gradients["t"].ravel().tolist() == [9.0, 15.0]
        assert messages["0"][1].gradients["t"].ravel().tolist() == [1.0]

    @pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 100])
    @pytest.mark.parametrize("servers", [1, 3])
    def test_dense_parameters_are_cut_without_gap_or_overlap(self, length: int, servers: int) -> None:
        """64 blocks of uneven sizes, some empty: each element goes to one server and comes back in place."""
        client = make_client(1, {}, length, dense_blocks=64)
        owners = (np.arange(80) % servers).astype(np.uint16)
        client.set_map(0.0, PartitionMap(2, 4, owners, tuple(map(str, range(servers)))))
        vector = np.arange(length, dtype=np.float32)
        client.push(0.0, PushName(7, 0), {}, vector)
        pushes = asked(client)
        sent = np.concatenate([message.dense for _id, message in pushes.values()])
        assert sorted(sent.tolist()) == vector.tolist()
        assert all(message.blocks.size for _id, message in pushes.values())

        call = client.pull(0.0, {}, dense=True)
        pulls = asked(client)
        for server, (request_id, message) in pulls.items():
            assert message.blocks.tolist() == pushes[server][1].blocks.tolist()
            answer(client, 0.1, request_id, Pulled({}, pushes[server][1].dense, NO_UNITS, NO_OWNERS))
        assert client.pulled(call).dense.tolist() == vector.tolist()

    def test_an_empty_pull_is_complete_at_once_and_asks_no_server(self) -> None:
        client = make_client(2, {"t": 3})
        call = client.pull(0.0, {"t": np.empty(0, np.uint64)})
        assert asked(client) == {}
        assert completed(client) == [(call, None)]
        assert client.pulled(call).rows["t"].shape == (0, 3)

    def test_an_empty_push_is_acknowledged_at_once_and_not_counted(self) -> None:
        """A batch of nulls only: its number must not hold the floor of the stream back for ever."""
        client = make_client(2, {"t": 3})
        call = client.push(0.0, PushName(7, 0), {"t": (np.empty(0, np.uint64), _ones(0, 3))})
        assert completed(client) == [(call, None)]
        assert client.acked_below(7) == 1
        assert (client.pushes_sent, client.updates_sent) == (0, 0)

    def test_a_push_counts_once_however_many_servers_take_part(self) -> None:
        client = make_client(2, {"t": 1}, dense_length=4)
        client.push(0.0, PushName(7, 0), {"t": (keys_in(0, 1, 9), _ones(3))}, np.ones(4, np.float32))
        assert (client.pushes_sent, client.updates_sent) == (1, 3 + 4)
        homes = {message.home for _id, message in asked(client).values()}
        assert homes == {0}

    def test_an_erase_is_named_and_split_like_a_push(self) -> None:
        client = make_client(2, {"t": 1})
        client.erase(0.0, PushName(7, 4, 1), {"t": keys_in(0, 9)})
        messages = asked(client)
        assert all(isinstance(message, Erase) for _id, message in messages.values())
        assert {(m.stream, m.number, m.epoch) for _id, m in messages.values()} == {(7, 4, 1)}


class TestRefusals:
    def test_what_is_refused_goes_to_the_owner_that_the_refusal_names_under_the_same_name(self) -> None:
        client = make_client(2, {"t": 1})
        name = PushName(7, 5, 2)
        call = client.push(0.0, name, {"t": (keys_in(0, 1, 2), np.array([[0.0], [1.0], [2.0]], np.float32))})
        answer(client, 0.1, asked(client)["0"][0], _refused(u1=1))
        (request_id, again) = asked(client)["1"]
        assert (again.stream, again.number, again.epoch) == (7, 5, 2)
        assert again.keys["t"].tolist() == keys_in(1).tolist()
        assert again.gradients["t"].tolist() == [[1.0]]
        assert completed(client) == []
        answer(client, 0.2, request_id, ALL_TAKEN)
        assert completed(client) == [(call, None)]

    def test_a_hint_is_kept_for_later_calls(self) -> None:
        client = make_client(2, {"t": 1})
        client.push(0.0, PushName(7, 0), {"t": (keys_in(1), _ones(1))})
        answer(client, 0.1, asked(client)["0"][0], _refused(u1=1))
        asked(client)
        client.pull(0.2, {"t": keys_in(1)})
        assert list(asked(client)) == ["1"]

    def test_a_newer_map_wins_over_hints_and_an_older_one_does_not(self) -> None:
        client = make_client(3, {"t": 1})
        older = client.map
        newer = older.moved(1, 2)
        client.set_map(0.1, newer)
        client.set_map(0.1, older)
        client.pull(0.2, {"t": keys_in(1)})
        assert list(asked(client)) == ["2"]

    def test_what_waits_for_a_server_that_has_left_goes_to_the_owners_of_its_units(self) -> None:
        client = make_client(2, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(0, 9)})
        first = asked(client)
        owners = np.zeros(client.map.owners.size, np.uint16)
        client.set_map(0.1, PartitionMap(5, 4, owners, ("0", "")))
        (request_id, pull) = asked(client)["0"]
        assert pull.keys["t"].tolist() == keys_in(9).tolist()
        for request, value in ((request_id, 9.0), (first["0"][0], 1.0)):
            answer(
                client,
                0.2,
                request,
                Pulled({"t": np.array([[value]], np.float32)}, NO_FLOATS, NO_UNITS, NO_OWNERS),
            )
        assert completed(client) == [(call, None)]
        assert client.pulled(call).rows["t"].tolist() == [[1.0], [9.0]]

    def test_a_refusal_that_names_no_owner_asks_the_same_server_again_after_pauses(self) -> None:
        """The unit is on its way there; asking without a pause would be a storm."""
        client = make_client(1, {"t": 1})
        client.push(0.0, PushName(7, 0), {"t": (keys_in(1), _ones(1))})
        now_s, pauses = 0.0, []
        for _ in range(8):
            answer(client, now_s, asked(client)["0"][0], _refused(u1=NOBODY))
            started_s = now_s
            while not client.requests.outbox:
                now_s += 0.01
                client.requests.tick(now_s)
            pauses.append(now_s - started_s)
        assert pauses[0] == pytest.approx(0.01, abs=0.02)
        assert pauses == pytest.approx(sorted(pauses), abs=0.02)
        assert 0.2 < pauses[-1] <= 0.3

    def test_servers_that_name_each_other_for_ever_are_not_waited_for_for_ever(self) -> None:
        """A stuck move: each refusal is a new request, so the call itself must have an end."""
        client = make_client(2, {"t": 1})
        call = client.push(0.0, PushName(7, 0), {"t": (keys_in(1), _ones(1))})
        now_s = 0.0
        while not client.completed:
            for server, (request_id, _message) in asked(client).items():
                answer(client, now_s, request_id, _refused(u1=1 - int(server)))
            now_s += 0.1
            for expired in client.requests.tick(now_s):
                client.expire(expired.ticket, expired.waited_s)
            assert now_s < TIMING.request_s + 2
        ((failed, text),) = completed(client)
        assert failed == call
        assert text is not None
        assert "waited" in text
        assert len(client.requests) == 0

    def test_an_owner_that_has_no_address_is_not_believed(self) -> None:
        client = make_client(2, {"t": 1})
        client.pull(0.0, {"t": keys_in(1)})
        refusal = Pulled({"t": _ones(1)}, NO_FLOATS, np.array([1], np.uint32), np.array([9], np.uint16))
        answer(client, 0.1, asked(client)["0"][0], refusal)
        assert list(asked(client)) == ["0"]

    def test_a_pull_takes_refused_rows_from_the_second_answer(self) -> None:
        client = make_client(2, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(0, 1, 0)})
        first = Pulled(
            {"t": np.array([[5], [0], [5]], np.float32)},
            NO_FLOATS,
            np.array([1], np.uint32),
            np.array([1], np.uint16),
        )
        answer(client, 0.1, asked(client)["0"][0], first)
        second = Pulled({"t": np.array([[6]], np.float32)}, NO_FLOATS, NO_UNITS, NO_OWNERS)
        answer(client, 0.2, asked(client)["1"][0], second)
        assert completed(client) == [(call, None)]
        assert client.pulled(call).rows["t"].ravel().tolist() == [5.0, 6.0, 5.0]

    def test_a_refused_dense_block_goes_on_alone(self) -> None:
        client = make_client(2, {}, dense_length=8)
        client.push(0.0, PushName(7, 0), {}, np.arange(8, dtype=np.float32))
        answer(client, 0.1, asked(client)["0"][0], _refused(u18=1))
        (_id, again) = asked(client)["1"]
        assert again.blocks.tolist() == [2]
        assert again.dense.tolist() == [4.0, 5.0]


class TestErrors:
    def test_an_expired_part_names_the_server_and_the_seconds_and_ends_the_call(self) -> None:
        client = make_client(2, {"t": 1})
        call = client.push(0.0, PushName(7, 0), {"t": (keys_in(0, 9), _ones(2))})
        answer(client, 1.0, asked(client)["0"][0], ALL_TAKEN)
        (expired,) = client.requests.tick(30.0)
        assert client.expire(expired.ticket, expired.waited_s)
        text = "waited 30 s for server 1 at 1: no answer; is it alive?"
        assert [type(one.error) for one in client.completed] == [WaitTimeoutError]
        assert completed(client) == [(call, text)]
        assert client.acked_below(7) == 0

    def test_a_call_whose_parts_all_expire_fails_once(self) -> None:
        client = make_client(2, {"t": 1})
        client.push(0.0, PushName(7, 0), {"t": (keys_in(0, 9), _ones(2))})
        first, second = client.requests.tick(30.0)
        assert client.expire(first.ticket, first.waited_s)
        assert not client.expire(second.ticket, second.waited_s)
        assert len(completed(client)) == 1

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("fenced", SupersededError),
            ("internal", UnavailableError),
            ("configuration", ConfigurationError),
            ("unknown-table", UnknownTableError),
        ],
    )
    def test_a_failure_ends_the_call_and_its_other_parts(self, code: str, kind: type[Exception]) -> None:
        client = make_client(2, {"t": 1})
        call = client.push(0.0, PushName(7, 0), {"t": (keys_in(0, 9), _ones(2))})
        messages = asked(client)
        answer(client, 0.1, messages["0"][0], Failure(code, "lease 7 is held"))
        assert type(client.completed[0].error) is kind
        assert completed(client) == [(call, "0: lease 7 is held")]
        assert not answer(client, 0.2, messages["1"][0], ALL_TAKEN)
        assert len(client.requests) == 0
        assert client.acked_below(7) == 0

    def test_the_same_name_can_be_pushed_again_after_a_failure(self) -> None:
        client = make_client(1, {"t": 1})
        for attempt in range(2):
            client.push(0.0, PushName(7, 0), {"t": (keys_in(0), _ones(1))})
            request_id = asked(client)["0"][0]
            answer(client, 0.1, request_id, ALL_TAKEN if attempt else Failure("internal", "no"))
        assert client.acked_below(7) == 1

    @pytest.mark.parametrize(
        "came",
        [
            pytest.param(Pushed(NO_UNITS, NO_OWNERS), id="another kind"),
            pytest.param(Done(), id="no answer to this"),
            pytest.param(Pulled({}, NO_FLOATS, NO_UNITS, NO_OWNERS), id="no rows"),
            pytest.param(Pulled({"t": _ones(1)}, NO_FLOATS, NO_UNITS, NO_OWNERS), id="a row too few"),
            pytest.param(Pulled({"t": _ones(2, 2)}, NO_FLOATS, NO_UNITS, NO_OWNERS), id="too wide"),
            pytest.param(
                Pulled({"t": _ones(2), "u": _ones(2)}, NO_FLOATS, NO_UNITS, NO_OWNERS), id="a table too many"
            ),
            pytest.param(Pulled({"t": _ones(2)}, np.zeros(3, np.float32), NO_UNITS, NO_OWNERS), id="dense"),
            pytest.param(
                Pulled({"t": _ones(2)}, NO_FLOATS, np.array([20], np.uint32), np.array([0], np.uint16)),
                id="unit out of range",
            ),
            pytest.param(
                Pulled({"t": _ones(2)}, NO_FLOATS, np.array([1], np.uint32), NO_OWNERS),
                id="a unit without owner",
            ),
        ],
    )
    def test_an_answer_that_does_not_fit_its_question_is_an_error_not_a_crash(self, came: Pulled) -> None:
        client = make_client(1, {"t": 1})
        call = client.pull(0.0, {"t": keys_in(0, 1)})
        answer(client, 0.1, asked(client)["0"][0], came)
        ((failed, text),) = completed(client)
        assert failed == call
        assert text is not None
        assert "does not fit what it was asked" in text

    def test_a_message_too_large_for_one_server_is_sent_to_none(self) -> None:
        """Else the push would count on some servers and be reported as failed."""
        small = RequestTable(Codec("demo", Limits(frame_bytes_max=64)), TIMING)
        client = ClientSession(small, PartitionMap.even(4, 4, ("0", "1")), {"t": 1}, 0)
        keys = np.array([key_in(0), *(key_in(9, number) for number in range(20))], np.uint64)
        with pytest.raises(LocalProtocolError, match="send less at a time"):
            client.push(0.0, PushName(7, 0), {"t": (keys, _ones(21))})
        assert small.outbox == []
        assert len(small) == 0
        assert client.pushes_sent == 0

    @pytest.mark.parametrize(
        ("keys", "gradients", "dense"),
        [
            (keys_in(0).astype(np.int64), _ones(1), None),
            (keys_in(0)[None], _ones(1), None),
            (keys_in(0), _ones(2), None),
            (keys_in(0), _ones(1, 2), None),
            (keys_in(0), _ones(1).astype(np.float64), None),
            (keys_in(0), _ones(1), np.ones(3, np.float32)),
            (keys_in(0), _ones(1), np.ones(4)),
            (keys_in(0), _ones(1), np.ones((4, 1), np.float32)),
        ],
        ids=["int64", "2-d keys", "rows", "columns", "float64", "dense size", "dense float64", "dense 2-d"],
    )
    def test_wrong_arrays_are_found_before_anything_is_sent(self, keys, gradients, dense) -> None:  # type: ignore[no-untyped-def]
        client = make_client(1, {"t": 1}, dense_length=4)
        with pytest.raises(ConfigurationError, match="expected"):
            client.push(0.0, PushName(7, 0), {"t": (keys, gradients)}, dense)
        assert asked(client) == {}
        assert client.pushes_sent == 0

    def test_an_unknown_table_is_named(self) -> None:
        client = make_client(1, {"t": 1})
        with pytest.raises(ConfigurationError, match=r"table 'x' is unknown; tables: \['t'\]"):
            client.pull(0.0, {"x": keys_in(0)})

    def test_an_answer_for_another_client_is_not_taken(self) -> None:
        client = make_client(1, {"t": 1})
        ticket = client.requests.start(0.0, "0", Pull({}, NO_UNITS))
        assert not client.receive(0.0, ticket, ALL_TAKEN)
        assert not client.expire(ticket, 1.0)


class TestStreams:
    def _push(self, client: ClientSession, number: int) -> tuple[int, Push]:
        client.push(0.0, PushName(7, number), {"t": (keys_in(0), _ones(1))})
        request_id, message = asked(client)["0"]
        return request_id, message

    def test_the_floor_waits_for_the_lowest_number(self) -> None:
        client = make_client(1, {"t": 1})
        ids = [self._push(client, number)[0] for number in range(3)]
        for place, floor in ((2, 0), (1, 0), (0, 3)):
            answer(client, 0.1, ids[place], ALL_TAKEN)
            assert client.acked_below(7) == floor
        assert self._push(client, 3)[1].all_acked_below == 3

    def test_a_stream_that_is_taken_over_starts_at_its_floor(self) -> None:
        client = make_client(1, {"t": 1})
        client.open_stream(7, 40)
        assert client.acked_below(7) == 40
        request_id, message = self._push(client, 40)
        assert message.all_acked_below == 40
        answer(client, 0.1, request_id, ALL_TAKEN)
        assert client.acked_below(7) == 41

    def test_a_stream_that_comes_back_keeps_what_is_known_of_it(self) -> None:
        """A lease lost and given back: numbers acknowledged before are pushed again, and take no memory."""
        client = make_client(1, {"t": 1})
        for number in range(3):
            answer(client, 0.1, self._push(client, number)[0], ALL_TAKEN)
        client.open_stream(7, 1)
        assert client.acked_below(7) == 3
        answer(client, 0.1, self._push(client, 1)[0], ALL_TAKEN)
        assert client._streams[7].above == set()

    def test_a_closed_stream_is_forgotten(self) -> None:
        client = make_client(1, {"t": 1})
        answer(client, 0.1, self._push(client, 0)[0], ALL_TAKEN)
        client.close_stream(7)
        assert client.acked_below(7) == 0
        assert not client._streams

    def test_nothing_is_kept_of_calls_that_are_over(self) -> None:
        client = make_client(1, {"t": 1})
        for number in range(100):
            answer(client, 0.1, self._push(client, number)[0], ALL_TAKEN)
        assert not client._calls
        assert not client._parts
        assert client._streams[7].above == set()
