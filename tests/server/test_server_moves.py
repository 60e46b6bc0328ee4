"""Units that move between servers, scene by scene: each move once, and nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.wire.messages import NOBODY, Adopt, Done, Erase, Failure, Keep, Pull, Release, Stats
from tests.support.simulated.protocol_worlds import (
    OneServer,
    keys_in,
    move_unit,
    push_ones,
    refusals,
    setup_of,
    values_of,
)

SHARDS = pytest.mark.parametrize("shards", [1, 3])


def two_servers(shards: int = 1) -> tuple[OneServer, OneServer]:
    """Two servers with one table; the first owns all units."""
    servers = OneServer(shards), OneServer(shards, [])
    for server in servers:
        server.ask(setup_of(t=1))
    return servers


def given(server: OneServer) -> Adopt:
    """Release unit 3 under map 2; return the message for its new owner."""
    image = server.ask(Release(3, 1, 2))
    return Adopt(3, 2, image.marks, image.content, image.keys)


def arrays(rows: int, dim: int, kind: Any = np.float32) -> dict[str, Any]:
    """Content of an image of table t."""
    return {"t.weights": np.zeros((rows, dim), kind), "t.state": np.zeros((rows, 0), np.float32)}


class TestMoves:
    def test_an_erase_that_goes_on_after_a_move_erases_nothing_that_came_back(self) -> None:
        """Its part for unit 4 was refused first; unit 3 has new rows since it was erased there."""
        first, second = two_servers()
        move_unit(4, first, second, owner=1, version=2)
        erase = Erase(7, 1, 0, 1, 0, {"t": keys_in(3, 4)})
        assert refusals(first.ask(erase)) == {4: 1}
        first.ask(push_ones(2, keys_in(3)))
        second.ask(push_ones(0, keys_in(4)))
        move_unit(4, second, first, owner=0, version=3)
        assert refusals(first.ask(erase)) == {}
        assert values_of(first, keys_in(3)) == [1.0]
        assert values_of(first, keys_in(4)) == [0.0]

    def test_an_image_with_keys_of_another_partition_is_refused_whole(self) -> None:
        first, second = two_servers()
        first.ask(push_ones(0, keys_in(3)))
        image = first.ask(Release(3, 1, 2))
        answer = second.ask(Adopt(4, 2, image.marks, image.content, image.keys))
        assert (answer.code, "keys of other partitions" in answer.text) == ("configuration", True)
        assert second.ask(Stats()).values["rows"] == 0
        assert refusals(second.ask(push_ones(0, keys_in(4)))) == {4: NOBODY}

    @SHARDS
    def test_rows_state_and_marks_move_and_the_old_owner_names_the_new_one(self, shards: int) -> None:
        old, new = two_servers(shards)
        push = push_ones(0, keys_in(3, 4))
        old.ask(push)
        move_unit(3, old, new, owner=1, version=2)
        assert refusals(old.ask(push)) == {3: 1}
        new.ask(push_ones(0, keys_in(3)))
        assert values_of(new, keys_in(3)) == [1.0]
        assert old.ask(Stats()).values["rows"] == 1

    def test_a_release_asked_again_gives_the_same_image_again(self) -> None:
        server = OneServer(setup=setup_of(t=1))
        server.ask(push_ones(0, keys_in(3)))
        first, second = server.ask(Release(3, 1, 2)), server.ask(Release(3, 1, 2))
        assert first.content["t.weights"].tolist() == second.content["t.weights"].tolist() == [[1.0]]
        assert first.marks == second.marks

    def test_an_image_is_kept_until_the_map_of_its_move_is_published(self) -> None:
        server = OneServer(setup=setup_of(t=1))
        server.ask(Release(3, 1, 2))
        server.ask(Release(4, 1, 3))
        server.shards[0].moves.forget_images(2)
        assert list(server.shards[0].moves.released) == [4]

    def test_a_second_copy_of_an_adoption_changes_nothing(self) -> None:
        old, new = two_servers()
        adopt = move_unit(3, old, new, owner=1, version=2)
        new.ask(push_ones(0, keys_in(3)))
        assert new.ask(adopt) == Done()
        assert values_of(new, keys_in(3)) == [1.0]

    def test_a_late_copy_of_an_adoption_makes_no_second_owner(self) -> None:
        """The unit has moved on: owning it again, with the old rows, would split the cluster's memory."""
        (first, second), third = two_servers(), OneServer(1, [], setup=setup_of(t=1))
        adopt = move_unit(3, first, second, owner=1, version=2)
        move_unit(3, second, third, owner=2, version=3)
        assert second.ask(adopt) == Done()
        assert refusals(second.ask(push_ones(0, keys_in(3)))) == {3: 2}

    def test_a_late_copy_of_a_release_takes_nothing_away_from_the_unit_that_came_back(self) -> None:
        first, second = two_servers()
        move_unit(3, first, second, owner=1, version=2)
        move_unit(3, second, first, owner=0, version=3)
        assert first.ask(Release(3, 1, 2)).code == "configuration"
        assert refusals(first.ask(push_ones(0, keys_in(3)))) == {}

    def test_a_unit_that_was_refused_is_kept_with_everything_in_it(self) -> None:
        first, second = OneServer(), OneServer(1, [])
        first.ask(setup_of(t=1))
        push = push_ones(0, keys_in(3))
        first.ask(push)
        adopt = given(first)
        assert second.ask(adopt).code == "configuration"  # it has no table t
        for _ in range(2):
            assert first.ask(Keep(3, 2)) == Done()
        assert refusals(first.ask(push)) == {}
        assert values_of(first, keys_in(3)) == [1.0]

    def test_a_late_copy_of_a_refused_adoption_is_refused_for_good(self) -> None:
        """By then the unit is back at its old owner: taking it would make a second one."""
        first, second = OneServer(), OneServer(1, [])
        first.ask(setup_of(t=1))
        adopt = given(first)
        second.ask(adopt)
        first.ask(Keep(3, 2))
        second.ask(setup_of(t=1))
        assert second.ask(adopt).code == "configuration"
        move_unit(3, first, second, owner=1, version=3)

    def test_nothing_is_adopted_under_a_map_that_is_published(self) -> None:
        first, second = two_servers()
        adopt = given(first)
        second.shards[0].moves.forget_images(2)
        assert "that move is over" in second.ask(adopt).text

    def test_a_unit_that_was_not_released_is_not_kept(self) -> None:
        server = OneServer(1, [])
        assert "it was not released" in server.ask(Keep(3, 2)).text

    def test_tables_go_from_server_to_server_without_values(self) -> None:
        old, new = OneServer(), OneServer(1, [])
        old.ask(setup_of(dense_length=7, t=1))
        assert new.ask(old.shards[0].setup_message()) == Done()
        move_unit(17, old, new, owner=1, version=2)
        assert new.ask(setup_of(dense_length=7, t=1)) == Done()  # of a trainer that comes later
        assert new.ask(Pull({}, np.array([1], np.uint32))).dense.tolist() == [2.0, 3.0]

    def test_a_block_that_came_without_values_gets_the_first_ones_that_come(self) -> None:
        old, new = OneServer(), OneServer(1, [])
        move_unit(17, old, new, owner=1, version=2)
        other = OneServer(setup=setup_of(dense_length=7))
        new.ask(other.shards[0].setup_message())
        new.ask(setup_of(dense_length=7))
        assert new.ask(Pull({}, np.array([1], np.uint32))).dense.tolist() == [2.0, 3.0]

    def test_a_unit_may_be_given_to_its_owner(self) -> None:
        server = OneServer(2, setup=setup_of(t=1))
        server.ask(push_ones(0, keys_in(3)))
        move_unit(3, server, server, owner=0, version=2)
        server.ask(push_ones(0, keys_in(3)))
        assert values_of(server, keys_in(3)) == [1.0]

    def test_a_unit_that_is_owned_is_not_adopted_from_another_server(self) -> None:
        server = OneServer()
        assert server.ask(Adopt(3, 2, {"done_below": 0, "streams": []}, {}, {})).code == "configuration"

    def test_a_unit_that_is_not_owned_is_not_released(self) -> None:
        server = OneServer(1, [])
        assert "this server does not own it" in server.ask(Release(3, 1, 2)).text

    def test_tables_that_the_source_has_not_heard_of_yet_are_empty_in_its_image(self) -> None:
        old, new = OneServer(), OneServer(1, [])
        new.ask(setup_of(t=1))
        move_unit(3, old, new, owner=1, version=2)
        assert values_of(new, keys_in(3)) == [0.0]

    @pytest.mark.parametrize(
        ("content", "keys"),
        [
            ({}, {"t": keys_in(3)}),
            (arrays(1, 2), {"t": keys_in(3)}),
            (arrays(2, 1), {"t": keys_in(3)}),
            (arrays(1, 1, np.float64), {"t": keys_in(3)}),
            ({"t.weights": np.zeros((1, 1), np.float32)}, {"t": keys_in(3)}),
            (arrays(1, 1), {"t": keys_in(4)}),
            ({}, {"x": keys_in(3)}),
        ],
        ids=["no rows", "too wide", "too many", "float64", "no state", "another partition", "unknown table"],
    )
    def test_an_image_that_does_not_fit_is_refused_and_nothing_has_changed(
        self, content: dict[str, Any], keys: dict[str, Any]
    ) -> None:
        """A unit that is owned without its rows would be a silent loss."""
        server = OneServer(1, [], setup=setup_of(t=1))
        answer = server.ask(Adopt(3, 2, {"done_below": 0, "streams": [[7, 0, 9, []]]}, content, keys))
        assert isinstance(answer, Failure)
        assert server.shards[0].owned == 0
        assert len(server.shards[0].marks) == 0
        assert server.ask(Stats()).values["rows"] == 0
