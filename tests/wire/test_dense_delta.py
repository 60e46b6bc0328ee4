"""Dense parameters: blocks that have not changed do not travel again; what 16 bits cut off comes later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.errors import ConfigurationError
from pslib.table.optimizers import SGD
from pslib.table.partition_map import PartitionMap
from pslib.table.tables import DenseSpec
from pslib.table.wire_format import DENSE_TYPES, WireFormat
from pslib.trainer.pipeline.dense import DensePulls, ErrorFeedback
from pslib.wire.dense_delta import VERSIONS, KnownDense
from pslib.wire.messages import NOBODY, Failure, Pull, Pulled, Push
from pslib.wire.quantization import QuantizedRows
from tests.support.clients import client_of
from tests.support.simulated.protocol_worlds import (
    NO_FLOATS,
    OneServer,
    answer,
    asked,
    completed,
    make_client,
    move_unit,
    setup_of,
)

BLOCKS = np.arange(4, dtype=np.uint32)
BITS = 4


def step(server: OneServer, number: int, *blocks: int, size: int = 2) -> None:
    """One step of some dense blocks."""
    gradient = np.ones(size * len(blocks), np.float32)
    server.ask(Push(7, number, 0, 0, 0, {}, {}, np.array(blocks, np.uint32), gradient))


def pulled(server: OneServer, versions: Any, blocks: Any = BLOCKS) -> Pulled:
    result = server.ask(Pull({}, blocks, known={VERSIONS: np.asarray(versions, np.uint64)}))
    assert isinstance(result, Pulled)
    return result


def a_server(shards: int = 1, units: list[int] | None = None) -> OneServer:
    server = OneServer(shards, units, setup=setup_of(dense_length=8))
    return server


class TestServer:
    @pytest.mark.parametrize("shards", [1, 3])
    def test_only_blocks_that_have_changed_come_back(self, shards: int) -> None:
        server = a_server(shards)
        first = pulled(server, [0] * 4)
        assert first.dense.tolist() == list(range(8))
        versions = first.dense_versions[VERSIONS]
        assert (versions != 0).all()
        assert pulled(server, versions).dense.size == 0
        step(server, 0, 1, 3)
        second = pulled(server, versions)
        assert second.dense.tolist() == [1, 2, 5, 6]
        assert (second.dense_versions[VERSIONS] - versions).tolist() == [0, 1, 0, 1]

    def test_a_client_that_says_nothing_gets_all_and_no_versions(self) -> None:
        answer_ = a_server().ask(Pull({}, BLOCKS))
        assert answer_.dense.tolist() == list(range(8))
        assert answer_.dense_versions == {}

    def test_a_refused_block_has_version_0_and_does_not_come(self) -> None:
        server = a_server(units=[*range(16), 17, 19])
        came = pulled(server, [0] * 4)
        assert came.dense.tolist() == [2, 3, 6, 7]
        assert (came.dense_versions[VERSIONS] != 0).tolist() == [False, True, False, True]
        assert came.refused_units.tolist() == [16, 18]

    def test_a_version_moves_with_its_block(self) -> None:
        source, target = a_server(units=[16, 17]), a_server(units=[18, 19])
        step(source, 0, 1)
        version = pulled(source, [0], BLOCKS[1:2]).dense_versions[VERSIONS]
        move_unit(17, source, target, owner=1, version=2)
        assert pulled(target, version, BLOCKS[1:2]).dense.size == 0
        step(target, 1, 1)
        assert pulled(target, version, BLOCKS[1:2]).dense.tolist() == [0, 1]

    def test_blocks_of_two_lives_of_a_server_are_not_taken_for_the_same(self) -> None:
        one, other = a_server(), OneServer()
        setup = setup_of(dense_length=8)
        other.ask(type(setup)(setup.tables, 8, setup.dense_optimizer, np.arange(8, dtype=np.float32) + 1))
        known = pulled(one, [0] * 4).dense_versions[VERSIONS]
        assert pulled(other, known).dense.size == 8

    @pytest.mark.parametrize(
        "known",
        [
            {VERSIONS: np.zeros(3, np.uint64)},
            {"others": np.zeros(4, np.uint64)},
            {VERSIONS: np.zeros(4, np.uint64), "more": np.zeros(4, np.uint64)},
        ],
    )
    def test_versions_that_do_not_fit_are_refused_in_a_line(self, known: dict[str, Any]) -> None:
        refusal = a_server().ask(Pull({}, BLOCKS, known=known))
        assert isinstance(refusal, Failure)
        assert refusal.text.startswith("known: expected 4 versions of dense blocks or nothing, got")


class TestClientSession:
    NO_UNITS, NO_OWNERS = np.empty(0, np.uint32), np.empty(0, np.uint16)

    def known(self) -> KnownDense:
        return KnownDense(np.arange(8, dtype=np.float32), np.array([5, 6, 7, 8], np.uint64))

    def came(self, dense: list[float], *versions: int) -> Pulled:
        named = {VERSIONS: np.array(versions, np.uint64)} if versions else {}
        return Pulled({}, np.array(dense, np.float32), self.NO_UNITS, self.NO_OWNERS, {}, named)

    def test_what_has_not_changed_is_taken_from_what_is_known(self) -> None:
        client = make_client(2, {}, dense_length=8)
        call = client.pull(0.0, {}, dense=True, known=self.known())
        messages = asked(client)
        assert messages["0"][1].known[VERSIONS].tolist() == [5, 7]
        answer(client, 0.1, messages["0"][0], self.came([40, 50], 5, 17))
        answer(client, 0.1, messages["1"][0], self.came([], 6, 8))
        assert completed(client) == [(call, None)]
        result = client.pulled(call)
        assert result.dense.tolist() == [0, 1, 2, 3, 40, 50, 6, 7]
        assert result.versions.tolist() == [5, 6, 17, 8]
        assert self.known().vector.tolist() == list(range(8))

    def test_a_refused_block_is_asked_for_again_with_its_version(self) -> None:
        client = make_client(2, {}, dense_length=8)
        call = client.pull(0.0, {}, dense=True, known=self.known())
        messages = asked(client)
        unit, owner = np.array([(1 << BITS) + 2], np.uint32), np.array([1], np.uint16)
        refusal = Pulled({}, NO_FLOATS, unit, owner, {}, {VERSIONS: np.array([5, 0], np.uint64)})
        answer(client, 0.1, messages["0"][0], refusal)
        again = asked(client)["1"]
        assert (again[1].blocks.tolist(), again[1].known[VERSIONS].tolist()) == ([2], [7])
        answer(client, 0.1, again[0], self.came([40, 50], 9))
        answer(client, 0.1, messages["1"][0], self.came([], 6, 8))
        assert completed(client) == [(call, None)]
        assert client.pulled(call).dense.tolist() == [0, 1, 2, 3, 40, 50, 6, 7]

    def test_a_block_that_was_refused_joins_the_others_wherever_their_answer_stands(self) -> None:
        client = make_client(1, {}, dense_length=8)
        call = client.pull(0.0, {}, dense=True)
        unit, owner = np.array([(1 << BITS) + 2], np.uint32), np.array([NOBODY], np.uint16)
        answer(client, 0.1, asked(client)["0"][0], Pulled({}, np.arange(8, dtype=np.float32), unit, owner))
        again = asked(client)["0"]
        assert again[1].blocks.tolist() == [2]
        answer(client, 0.2, again[0], self.came([40, 50]))
        assert completed(client) == [(call, None)]
        assert client.pulled(call).dense.tolist() == [0, 1, 2, 3, 40, 50, 6, 7]

    @pytest.mark.parametrize(
        "dense", [([1, 2], 5, 6, 7, 8), ([], 5, 6, 7, 9), ([], 5, 6, 7), ([],), ([1] * 8,), ([0], 5, 6, 7, 9)]
    )
    def test_an_answer_with_other_blocks_than_its_versions_say_is_an_error(self, dense: Any) -> None:
        client = make_client(1, {}, dense_length=8)
        call = client.pull(0.0, {}, dense=True, known=self.known())
        answer(client, 0.1, asked(client)["0"][0], self.came(*dense))
        ((number, text),) = completed(client)
        assert number == call
        assert "does not fit" in (text or "")

    @pytest.mark.parametrize(
        "known",
        [
            KnownDense(np.zeros(8, np.float32), np.ones(3, np.uint64)),
            KnownDense(np.zeros(7, np.float32), np.ones(4, np.uint64)),
        ],
    )
    def test_what_is_said_to_be_known_must_have_the_right_length(self, known: KnownDense) -> None:
        client = make_client(1, {}, dense_length=8)
        with pytest.raises(ConfigurationError, match=r"known dense parameters: expected \(4,\) versions"):
            client.pull(0.0, {}, dense=True, known=known)

    def test_the_map_names_as_many_blocks_as_versions_are_kept(self) -> None:
        assert PartitionMap.even(BITS, 4, ("0",)).dense_blocks == 4


def bytes_of_a_pull(client: Client, pulls: DensePulls) -> tuple[int, list[float]]:
    before = client.endpoint.bytes_received
    came = client.pull({}, **pulls.ask()).wait(5.0)
    return client.endpoint.bytes_received - before, pulls.arrived(came).tolist()


class TestTrainerSide:
    LENGTH = 1000

    def _client(self) -> Any:
        return client_of(2, shard_threads=2)

    def test_the_second_pull_of_the_same_parameters_costs_no_floats(self) -> None:
        with self._client() as (client, _running):
            client.setup([], DenseSpec(self.LENGTH, SGD(1.0)), np.arange(self.LENGTH, dtype=np.float32))
            pulls = DensePulls(client, WireFormat())
            first, values = bytes_of_a_pull(client, pulls)
            second, again = bytes_of_a_pull(client, pulls)
            assert values == again == list(range(self.LENGTH))
            assert second < 4 * self.LENGTH < first
            client.push({}, np.ones(self.LENGTH, np.float32)).wait(5.0)
            assert bytes_of_a_pull(client, pulls)[1] == list(range(-1, self.LENGTH - 1))

    def test_dense_parameters_may_be_pulled_every_so_many_batches(self) -> None:
        with self._client() as (client, _running):
            client.setup([], DenseSpec(2, SGD(1.0)), np.zeros(2, np.float32))
            pulls, seen = DensePulls(client, WireFormat(dense_every_batches=3)), []
            for _ in range(7):
                seen.append(bytes_of_a_pull(client, pulls)[1][0])
                client.push({}, np.ones(2, np.float32)).wait(5.0)
            assert seen == [0, 0, 0, -3, -3, -3, -6]

    @pytest.mark.parametrize("kind", DENSE_TYPES)
    def test_small_gradients_add_up_however_they_travel(self, kind: str) -> None:
        feedback, total = ErrorFeedback(2, kind), np.zeros(2)
        gradient = np.array([1.0, 0.001], np.float32)
        for _ in range(1000):
            packed = feedback.packed(gradient)
            assert packed.dtype == DENSE_TYPES[kind]
            total += QuantizedRows(packed[None]).floats()[0]
        np.testing.assert_allclose(total, [1000, 1.0], atol=0.01)
        assert gradient.tolist() == [1.0, np.float32(0.001)]
