"""The server's machine and its shards, scene by scene: requests applied or refused, and owners of units."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.config import Limits
from pslib.wire.codec import Codec
from pslib.wire.messages import (
    NOBODY,
    Adopt,
    Done,
    Erase,
    Failure,
    Keep,
    Pull,
    Pulled,
    Push,
    Release,
    Result,
    Setup,
    Stats,
)
from tests.support.simulated.protocol_worlds import (
    CODEC,
    NO_BLOCKS,
    NO_FLOATS,
    PEER,
    OneServer,
    counts_of,
    key_in,
    keys_in,
    move_unit,
    push_ones,
    refusals,
    setup_of,
    values_of,
)

SHARDS = pytest.mark.parametrize("shards", [1, 3])


class TestPushAndPull:
    @SHARDS
    def test_a_push_is_applied_once_however_often_it_comes(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        keys = keys_in(0, 1, 2, 9, 15)
        for _ in range(3):
            assert refusals(server.ask(push_ones(0, keys))) == {}
        assert values_of(server, keys) == [1.0] * 5
        assert counts_of(server) == (1, 5)

    @SHARDS
    def test_a_pull_creates_no_rows(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        assert values_of(server, keys_in(0, 5, 0)) == [0.0] * 3
        assert server.ask(Stats()).values["rows"] == 0

    @SHARDS
    def test_only_what_is_not_owned_is_refused(self, shards: int) -> None:
        server = OneServer(shards, units=[0, 1, 2], setup=setup_of(t=1))
        assert refusals(server.ask(push_ones(0, keys_in(1, 9, 2, 10)))) == {9: NOBODY, 10: NOBODY}
        answer = server.ask(Pull({"t": keys_in(9, 1, 2)}, NO_BLOCKS))
        assert refusals(answer) == {9: NOBODY}
        assert answer.rows["t"].ravel().tolist() == [0.0, 1.0, 1.0]

    @SHARDS
    def test_the_part_of_a_push_that_was_refused_first_is_still_applied_when_its_unit_has_come(
        self, shards: int
    ) -> None:
        """Marks are of units: a push known for one unit of a server is not known for another."""
        old, new = OneServer(shards, [0, 1], setup=setup_of(t=1)), OneServer(shards, [2], setup=setup_of(t=1))
        new.ask(push_ones(0, keys_in(1, 2)))
        move_unit(1, old, new, owner=1, version=2)
        new.ask(push_ones(0, keys_in(1, 2)))
        assert values_of(new, keys_in(1, 2)) == [1.0, 1.0]

    @SHARDS
    def test_an_erase_counts_once_and_a_late_copy_erases_nothing_that_came_back(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        keys = keys_in(0, 5)
        server.ask(push_ones(0, keys))
        erase = Erase(7, 1, 0, 1, 0, {"t": keys})
        server.ask(erase)
        assert server.ask(Stats()).values["rows"] == 0
        server.ask(push_ones(2, keys, floor=2))
        server.ask(erase)
        assert values_of(server, keys) == [1.0, 1.0]

    @SHARDS
    def test_an_empty_pull_and_an_empty_push_are_answered(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=3))
        none = np.empty(0, np.uint64)
        answer = server.ask(Pull({"t": none}, NO_BLOCKS))
        assert answer.rows["t"].shape == (0, 3)
        push = Push(7, 0, 0, 0, 0, {"t": none}, {"t": np.empty((0, 3), np.float32)}, NO_BLOCKS, NO_FLOATS)
        assert refusals(server.ask(push)) == {}
        assert counts_of(server) == (0, 0)

    @SHARDS
    def test_a_trainer_that_has_lost_a_lease_is_fenced_in_words(self, shards: int) -> None:
        server = OneServer(shards, setup=setup_of(t=1))
        server.ask(push_ones(0, keys_in(0), epoch=1))
        answer = server.ask(push_ones(1, keys_in(0), epoch=0))
        assert answer == Failure("fenced", "lease 7 is held under epoch 1; this push has epoch 0")
        assert values_of(server, keys_in(0)) == [1.0]

    def test_a_push_that_was_fenced_by_one_shard_and_applied_by_another_still_counts_once(self) -> None:
        """The successor has spoken to shard 0 only; the old holder's push is applied by shard 1 and then
        refused.

        When the successor pushes the same number, shard 1 knows it and shard 0 does not.
        """
        server = OneServer(2, setup=setup_of(t=1))
        server.shards[0].marks.fresh(7, 0, 1, 0b1)
        keys = keys_in(0, 1)
        assert isinstance(server.ask(push_ones(3, keys, epoch=0)), Failure)
        server.ask(push_ones(3, keys, epoch=1))
        assert values_of(server, keys) == [1.0, 1.0]
        assert counts_of(server) == (1, 2)


class TestDenseBlocks:
    @SHARDS
    @pytest.mark.parametrize("length", [1, 7, 100])
    def test_blocks_of_uneven_sizes_are_pulled_and_pushed_in_place(self, shards: int, length: int) -> None:
        server = OneServer(shards, dense_blocks=64, setup=setup_of(dense_length=length))
        size = -(-length // 64)
        blocks = np.arange(-(-length // size), dtype=np.uint32)[::-1].copy()
        order = np.concatenate([np.arange(b * size, min((b + 1) * size, length)) for b in blocks])
        assert server.ask(Pull({}, blocks)).dense.tolist() == order.tolist()
        server.ask(Push(7, 0, 0, 0, 16 + int(blocks[0]), {}, {}, blocks, -order.astype(np.float32)))
        assert server.ask(Pull({}, blocks)).dense.tolist() == (2 * order).tolist()
        assert counts_of(server) == (1, blocks.size)

    def test_a_block_moves_with_its_weights_its_state_and_its_marks(self) -> None:
        setup = setup_of(dense_length=7)
        old, new = OneServer(1, [16, 17, 18, 19], setup=setup), OneServer(2, [], setup=setup)
        push = Push(7, 0, 0, 0, 17, {}, {}, np.array([1], np.uint32), -np.ones(2, np.float32))
        old.ask(push)
        move_unit(17, old, new, owner=1, version=2)
        assert refusals(old.ask(push)) == {17: 1}
        assert refusals(new.ask(push)) == {}
        assert new.ask(Pull({}, np.array([1], np.uint32))).dense.tolist() == [3.0, 4.0]

    def test_a_block_without_elements_moves_too(self) -> None:
        """One float in four blocks: three of them are empty, and still have an owner."""
        setup = setup_of(dense_length=1)
        old, new = OneServer(1, setup=setup), OneServer(1, [], setup=setup)
        move_unit(19, old, new, owner=1, version=2)
        assert new.shards[0].owned == 1 << 19

    def test_a_block_is_not_adopted_before_the_dense_parameters_are_set_up(self) -> None:
        """Else the set-up that comes later would put first values over what has been trained."""
        old, new = OneServer(1), OneServer(1, [])
        old.ask(setup_of(dense_length=7))
        image = old.ask(Release(16, 1, 2))
        adopt = Adopt(16, 2, image.marks, image.content, image.keys)
        assert new.ask(adopt).code == "configuration"
        assert new.shards[0].owned == 0
        new.ask(setup_of(dense_length=7))
        assert new.ask(adopt).code == "configuration"  # it may be back at its old owner by now
        assert old.ask(Keep(16, 2)) == Done()
        move_unit(16, old, new, owner=1, version=3)


class TestSetup:
    @pytest.mark.parametrize(
        "tables",
        [
            {},
            {"tables": 5},
            {"tables": [{"name": "t"}]},
            {"tables": [{"name": "a b", "seed": 0, "parts": []}]},
            {"tables": [], "models": 5},
            {"tables": [], "models": [{"table": "t"}, {"table": "t", "model": "a"}]},
        ],
    )
    def test_a_description_that_is_none_is_refused(self, tables: dict[str, Any]) -> None:
        server = OneServer()
        assert isinstance(server.ask(Setup(tables, 0, {}, NO_FLOATS)), Failure)
        assert not server.shards[0].broken


class TestRefusedRequests:
    def _server(self) -> OneServer:
        server = OneServer(2, setup=setup_of(dense_length=7, t=1))
        return server

    @pytest.mark.parametrize(
        ("request_", "code", "text"),
        [
            (Pull({"x": keys_in(0)}, NO_BLOCKS), "unknown-table", r"table 'x' is unknown; tables: \['t'\]"),
            (Erase(7, 0, 0, 0, 0, {"x": keys_in(0)}), "unknown-table", "'x'"),
            (Erase(7, 0, 0, 0, 20, {}), "configuration", r"home unit: expected 0\.\.19, got 20"),
            (Push(7, 0, 0, 0, 20, {}, {}, NO_BLOCKS, NO_FLOATS), "configuration", "home unit"),
            (Push(7, 0, 0, 0, 2**64 - 1, {}, {}, NO_BLOCKS, NO_FLOATS), "configuration", "home unit"),
            (Push(7, 0, 0, 0, 0, {"t": keys_in(0)}, {}, NO_BLOCKS, NO_FLOATS), "configuration", "different"),
            (
                Push(
                    7, 0, 0, 0, 0, {"t": keys_in(0)}, {"t": np.ones((1, 2), np.float32)}, NO_BLOCKS, NO_FLOATS
                ),
                "configuration",
                r"gradients of t: expected \(1, 1\), got \(1, 2\)",
            ),
            (Pull({}, np.array([4], np.uint32)), "configuration", "dense blocks: out of range or repeated"),
            (Pull({}, np.array([1, 1], np.uint32)), "configuration", "out of range or repeated"),
            (
                Push(7, 0, 0, 0, 0, {}, {}, np.array([3], np.uint32), np.ones(2, np.float32)),
                "configuration",
                "dense gradient: expected 1 floats, got 2",
            ),
            (Release(20, 0, 2), "configuration", r"unit: expected 0\.\.19, got 20"),
            (Release(2**64 - 1, 0, 2), "configuration", "unit"),
            (Adopt(20, 2, {"done_below": 0, "streams": []}, {}, {}), "configuration", "unit"),
            (Done(), "protocol", "a server does not take Done"),
        ],
    )
    def test_get_one_line_and_change_nothing(self, request_: Any, code: str, text: str) -> None:
        server = self._server()
        before = server.ask(Stats()).values
        answer = server.ask(request_, request_id=77)
        assert isinstance(answer, Failure)
        assert answer.code == code
        assert "\n" not in answer.text
        assert re.search(text, answer.text)
        assert server.ask(Stats()).values == before
        assert not any(shard.broken for shard in server.shards)

    def test_dense_blocks_that_are_not_set_up(self) -> None:
        server = OneServer()
        assert "have not been set up" in server.ask(Pull({}, np.array([0], np.uint32))).text

    @pytest.mark.parametrize("shards", [1, 2])
    def test_dense_blocks_without_values_are_refused_and_nothing_else_is_done(self, shards: int) -> None:
        server = OneServer(shards)
        bare = replace(setup_of(7, t=1), dense=NO_FLOATS, without_values=True)
        assert isinstance(server.ask(bare), Done)
        blocks, keys = np.array([1, 2], np.uint32), keys_in(*range(4))
        for message in (
            Pull({"t": keys}, blocks),
            push_ones(0, keys, blocks=blocks, dense=np.ones(4, np.float32)),
        ):
            answer = server.ask(message)
            assert isinstance(answer, Failure)
            assert answer.code == "configuration"
            assert re.match(r"dense block [12] has no values; expected a setup with first", answer.text)
        assert not any(shard.broken for shard in server.shards)
        assert isinstance(server.ask(setup_of(7, t=1)), Done)
        assert server.ask(Pull({}, blocks)).dense.tolist() == [2.0, 3.0, 4.0, 5.0]

    def test_an_answer_that_would_be_too_large_is_refused_before_memory_is_taken(self) -> None:
        """8 bytes of key ask for 16 KiB of row: a small message must not take a server's memory."""
        small = Codec("demo", Limits(frame_bytes_max=1 << 16))
        server = OneServer(codec=small, setup=setup_of(t=4096))
        keys = np.array([key_in(0)] * 5, np.uint64)
        answer = server.ask(Pull({"t": keys}, NO_BLOCKS))
        assert answer.code == "configuration"
        assert "does not fit an answer; pull fewer keys and blocks at a time" in answer.text
        assert isinstance(server.ask(Pull({"t": keys[:4]}, NO_BLOCKS)), Pulled)

    def test_dense_blocks_that_would_not_fit_an_answer_take_no_memory(self) -> None:
        """A set-up without values is a few bytes, whatever length it names."""
        server = OneServer()
        plain = setup_of(4)
        huge = replace(plain, dense_length=1 << 40, dense=NO_FLOATS, without_values=True)
        assert isinstance(server.ask(huge), Done)
        answer = server.ask(Pull({}, np.array([0], np.uint32)))
        assert answer.code == "configuration"
        assert "dense blocks does not fit an answer" in answer.text
        longer = server.ask(replace(huge, dense_length=(1 << 40) + 1))
        assert "length must be in 0..1099511627776" in longer.text

    @pytest.mark.parametrize(
        ("limits", "blocks"),
        [
            (Limits(frame_bytes_max=1 << 12), [0, 1]),
            (Limits(frame_bytes_max=1 << 20, message_bytes_max=1 << 13), [0, 1]),
        ],
        ids=["a frame", "half a message"],
    )
    def test_dense_blocks_of_an_answer_are_held_against_each_limit(
        self, limits: Limits, blocks: list[int]
    ) -> None:
        server = OneServer(codec=Codec("demo", limits))
        server.ask(replace(setup_of(4), dense_length=4096, dense=NO_FLOATS, without_values=True))
        refused = server.ask(Pull({}, np.array(blocks, np.uint32)))
        assert "8192 of dense blocks does not fit an answer" in refused.text
        assert "does not fit" not in server.ask(Pull({}, np.array(blocks[:1], np.uint32))).text

    def test_bytes_that_are_no_message_are_answered_under_number_0(self) -> None:
        server = self._server()
        assert server.session.receive(PEER, [b"\xc1", b"x"]) is None
        (reply,) = server.session.outbox
        envelope = CODEC.decode(reply.frames)
        assert envelope.request_id == 0
        assert isinstance(envelope.message, Failure)

    def test_an_answer_that_cannot_be_sent_is_a_failure_not_a_crash(self) -> None:
        """Marks of very many streams do not fit a header."""
        server = OneServer(codec=Codec("demo", Limits(header_bytes_max=1000)))
        server.ask(Setup({"tables": []}, 0, {}, NO_FLOATS))
        for stream in range(600):
            server.shards[0].marks.record(stream, 0, 0b1000)
        assert server.ask(Release(3, 1, 2)).code == "internal"
        assert isinstance(server.ask(Stats()), Result)

    def test_a_long_error_text_is_cut_so_that_it_fits_a_message(self) -> None:
        server = self._server()
        answer = server.ask(Pull({"x" * 4000: keys_in(0)}, NO_BLOCKS))
        assert answer.code == "unknown-table"

    def test_a_shard_that_failed_half_way_through_a_push_says_so_from_then_on(self) -> None:
        """No mark can say which rows have been applied, so nothing may be acknowledged any more."""
        server = self._server()

        class Broken:
            def push(self, keys: Any, gradients: Any, **_record: Any) -> None:
                raise MemoryError

        server.shards[1].stores["t"] = Broken()  # type: ignore[assignment]
        assert server.ask(push_ones(0, keys_in(1))).code == "internal"
        answer = server.ask(push_ones(1, keys_in(3)))
        assert answer.text == "shard 1 stopped: Push (7, 0) ended half-way: MemoryError: "
