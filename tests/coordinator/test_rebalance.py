"""Growing and shrinking as the coordinator sees it: waves, placement, joins, leaves, and restarts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pslib.coordinator.membership import Membership
from pslib.coordinator.rebalance import SCALE_REQUESTS_KEPT, Rebalance, ScaleRequests, even_owners
from pslib.errors import ConfigurationError
from pslib.table.partition_map import PartitionMap
from pslib.wire.messages import Failure, NextHand, Result, Scale
from tests.support.simulated.move_world import CONFIG, World, first_map, grown, scaled


class TestGrowing:
    def test_a_wish_for_more_servers_says_how_many_must_be_started(self) -> None:
        world = World()
        assert world.scale(4).values["awaited"] == 2
        assert world.lines == ["scaling to 4 servers: waiting for 2 more to join"]
        world.tick()
        assert world.moves.wave is None

    def test_units_move_in_waves_until_shares_are_even(self) -> None:
        world = grown()
        assert world.hand_over_all() == 2
        assert world.units() == [64, 64, 64, 64]
        assert world.moves.status(world.now_s)["moved"] == 128 + 4
        assert "shares are even" in world.lines[-1]

    def test_what_a_source_keeps_of_a_wave_is_bounded_in_bytes(self) -> None:
        world = World()
        for server in world.members.servers:
            server.progress["memory_bytes"] = 132 * (16 << 20)
        world.scale(3)
        world.join()
        world.settle()
        assert world.moves.wave is not None
        assert np.bincount(world.moves.wave.sources).tolist() == [4, 4]

    def test_no_unit_moves_before_all_know_where_the_new_servers_are(self) -> None:
        world = scaled(3, joins=1)
        world.tick()
        world.tick()
        assert world.moves.wave is None
        world.beat()
        world.tick()
        assert world.moves.wave is not None

    def test_a_trainer_that_hears_nothing_holds_up_no_move_for_longer_than_it_may_be_silent(self) -> None:
        world = scaled(3, joins=1)
        world.tick()
        world.tick(7.0)
        assert world.moves.wave is not None

    def test_servers_that_do_not_come_are_not_awaited_for_ever(self) -> None:
        world = scaled(5, joins=1)
        world.tick()
        world.beat()
        world.tick(59.0)
        assert world.moves.wave is None
        world.tick(2.0)
        world.hand_over_all()
        assert world.units() == [86, 85, 85]
        assert world.moves.awaited == 0
        assert "2 servers have not joined in time: scaling to 3 servers instead" in world.lines[1]

    def test_a_server_that_was_not_asked_for_owns_nothing(self) -> None:
        world = World()
        world.join()
        world.tick()
        world.beat()
        world.tick(100.0)
        assert world.moves.wave is None
        assert world.units() == [128, 128, 0]
        assert not world.moves.may_leave(world.now_s, 2)

    def test_shares_that_are_even_already_move_nothing(self) -> None:
        world = scaled(0)
        world.tick()
        assert (world.moves.wave, world.moves.moving) == (None, False)

    def test_no_wave_begins_while_files_are_written_and_one_that_has_begun_ends(self) -> None:
        world = grown()
        hands = [world.ask(rank) for rank in (0, 1)]
        world.tick(busy=True)
        for rank, hand in enumerate(hands):
            world.ask(rank, hand)
        assert world.moves.wave is None
        world.tick(busy=True)
        assert world.moves.wave is None

    def test_progress_says_how_far_it_is(self) -> None:
        world = grown()
        world.ask(0, world.ask(0))
        status = world.moves.status(world.now_s)
        assert (status["moved"], status["units"], status["bytes"]) == (64, 132, 640)


class TestShrinking:
    def test_the_highest_ranks_hand_over_all_they_have_and_leave_when_no_client_asks_them_any_more(
        self,
    ) -> None:
        world = grown()
        world.hand_over_all()
        world.scale(2)
        world.tick()
        world.hand_over_all()
        assert world.units() == [128, 128, 0, 0]
        assert world.members.map is not None
        assert world.members.map.addresses[2:] == ("", "")
        assert not world.moves.may_leave(world.now_s, 3)
        world.beat()
        world.tick()
        world.tick(2.5)
        assert [world.moves.may_leave(world.now_s, rank) for rank in range(4)] == [False, False, True, True]

    def test_no_successor_is_awaited_for_those_that_leave_when_the_run_is_over(self) -> None:
        world = grown()
        world.hand_over_all()
        world.members.servers[1].state = "left"
        assert world.moves.awaited == 0

    def test_a_rank_that_has_left_is_not_used_again(self) -> None:
        world = scaled(1)
        world.tick()
        world.hand_over_all()
        world.members.servers[1].state = "left"
        world.scale(2)
        assert world.moves.status(world.now_s)["awaited_ranks"] == [2]

    def test_a_server_that_dies_before_it_has_joined_is_still_the_one_that_is_awaited(self) -> None:
        """Its launcher starts it again; another one would be one too many."""
        world = scaled(4)
        world.members.register(0.0, "server", 103, "tcp://server:3", "", rank=3)
        assert world.moves.status(0.0)["awaited_ranks"] == [2]

    def test_a_server_of_ones_choice_can_be_drained(self) -> None:
        world = scaled(0, drain=(0,))
        world.tick()
        world.hand_over_all()
        assert world.units() == [0, 256]

    def test_a_server_that_is_drained_can_be_replaced_at_the_same_time(self) -> None:
        world = World()
        assert world.scale(2, drain=(0,)).values["awaited"] == 1
        world.join()
        world.settle()
        world.hand_over_all()
        assert world.units() == [0, 128, 128]

    def test_a_server_that_was_told_to_leave_and_has_not_gone_stays_when_it_is_wanted_again(self) -> None:
        world = scaled(1)
        world.scale(2)
        assert world.moves.leaving == set()


class TestLosses:
    def test_nothing_moves_while_an_owner_is_lost_and_it_keeps_its_share(self) -> None:
        world = World()
        world.members.servers[0].state = "lost"
        world.scale(3)
        world.join()
        world.settle()
        assert world.moves.wave is None
        world.members.servers[0].state = "live"  # as its successor would be
        world.tick()
        world.hand_over_all()
        assert world.units() == [86, 85, 85]

    def test_a_spare_server_that_is_lost_is_no_target(self) -> None:
        world = World()
        world.join()
        assert world.members.map is not None
        world.members.servers[2].state = "lost"
        world.members.map = world.members.map.with_address(2, "")
        world.scale(3)
        assert world.moves.awaited == 1


def test_of_many_wishes_the_last_thousand_are_known_by_name() -> None:
    wishes = ScaleRequests()
    for name in range(3 * SCALE_REQUESTS_KEPT):
        wishes.note(name, "no" if name % 2 else "")
    assert [wishes.answer(name) for name in (0, 2 * SCALE_REQUESTS_KEPT - 1)] == [None, None]
    assert [wishes.answer(2 * SCALE_REQUESTS_KEPT + i) for i in range(2)] == ["", "no"]
    assert wishes.granted == list(range(2 * SCALE_REQUESTS_KEPT, 3 * SCALE_REQUESTS_KEPT, 2))


class TestRefusals:
    @pytest.mark.parametrize(
        ("servers", "drain", "text"),
        [
            (17, (), "expected 1..16 servers"),
            (0, (0, 1), "no server would be left"),
            (2, (7,), "there is no server 7; there are [0, 1]"),
        ],
    )
    def test_what_can_not_be_is_refused_in_one_line(
        self, servers: int, drain: tuple[int, ...], text: str
    ) -> None:
        answer = World().scale(servers, drain)
        assert isinstance(answer, Failure)
        assert text in answer.text

    def test_a_cluster_that_has_not_started_can_not_be_scaled(self) -> None:
        moves = Rebalance(Membership(CONFIG), print)
        answer = moves.scale(0.0, Scale(3, [], 1))
        assert isinstance(answer, Failure)
        assert "has not started yet" in answer.text

    def test_a_late_copy_of_a_wish_changes_nothing_whichever_wishes_came_since(self) -> None:
        world = World()
        first, second = Scale(0, [1], 71), Scale(2, [], 72)
        moves = world.moves
        for wish in (first, second, first, first):
            assert isinstance(moves.scale(world.now_s, wish), Result)
        assert (moves.wanted, moves.leaving) == (2, set())
        assert len(world.records) == 2

        successor = Rebalance(world.members, print)  # so does one that has read the journal
        for record in world.records:
            successor.replay(record)
        assert isinstance(successor.scale(0.0, first), Result)
        assert (successor.wanted, successor.leaving) == (2, set())

    def test_the_answer_to_a_wish_that_was_refused_stays(self) -> None:
        world = World()
        wish = Scale(3, [7], 71)
        first = world.moves.scale(0.0, wish)
        for _ in range(6):
            world.join()
        assert isinstance(first, Failure)
        assert world.moves.scale(0.0, wish) == first

    def test_a_unit_that_its_new_owner_does_not_take_stays_and_the_moves_end_with_a_line(self) -> None:
        world = grown()
        hands = [world.ask(rank) for rank in (0, 1)]
        for rank, hand in enumerate(hands):
            world.ask(rank, hand, kept=3 * (rank == 0))
        assert world.units() == [67, 64, 61, 64]
        assert world.lines[-1] == "moves end: 3 units stay with server 0: full"
        world.tick()
        assert (world.moves.wave, world.moves.moving) == (None, False)
        assert world.ask(0).state == "done"
        world.scale(4)  # the user has made room
        world.tick()
        world.hand_over_all()
        assert world.units() == [64, 64, 64, 64]

    def test_a_process_that_is_no_member_is_told_nothing(self) -> None:
        none = np.empty(0, np.uint32)
        answer = grown().moves.next_hand(0.0, NextHand(0, 999, 0, 0, "", none, none))
        assert isinstance(answer, Failure)
        assert answer.code == "fenced"


class TestAgain:
    def test_a_source_is_told_the_same_until_it_says_that_it_is_done(self) -> None:
        world = grown()
        first, second = world.ask(0), world.ask(0)
        assert (first.version, first.units.tolist()) == (second.version, second.units.tolist())
        assert first.owners.tolist() == second.owners.tolist()

    def test_a_report_that_comes_twice_or_late_counts_once(self) -> None:
        world = grown()
        old = world.ask(0)
        for _ in range(2):
            world.ask(0, old)
        assert world.moves.status(world.now_s)["moved"] == 64
        world.hand_over_all()
        before = world.version()
        world.ask(0, old)
        assert (world.version(), world.units()) == (before, [64, 64, 64, 64])

    def test_addresses_that_change_during_a_wave_do_not_end_it(self) -> None:
        """Versions of such maps are lower than that of the wave, so that no source forgets its images."""
        world = grown()
        hand = world.ask(0)
        assert world.members.map is not None
        world.members.map = world.members.map.with_address(2, "tcp://elsewhere:1")
        assert world.version() < hand.version
        assert world.ask(0).addresses[2] == "tcp://elsewhere:1"
        world.hand_over_all()
        assert world.version() > hand.version
        assert world.members.map.addresses[2] == "tcp://elsewhere:1"

    @settings(max_examples=40, deadline=None)
    @given(some.lists(some.integers(1, 8), min_size=1, max_size=4), some.data())
    def test_a_coordinator_that_replays_its_records_goes_on_where_it_was(
        self, wishes: list[int], data: some.DataObject
    ) -> None:
        """At any moment: each unit has one owner, and the end is the same."""
        world = World()
        for wish in wishes:
            world.scale(wish)
            for _ in range(world.moves.awaited):
                world.join()
            world.settle()
            for _ in range(data.draw(some.integers(0, 3))):
                for server in world.members.live("server"):
                    world.ask(server.rank, world.ask(server.rank))
                world.tick()
            self._restart(world)
            world.hand_over_all()
            partitions = [count for count in world.units() if count]
            assert len(partitions) == wish
            assert max(partitions) - min(partitions) <= 1

    def _restart(self, world: World) -> None:
        records, before = list(world.records), world.members.map
        again = Rebalance(world.members, world.say, wave_units=64)
        world.members.map = first_map(world)
        for record in records:
            again.replay(record)
        again.on_record = world.records.append
        world.moves = again
        assert before is not None
        assert world.members.map is not None
        assert (world.members.map.owners == before.owners).all()
        world.members.map = before
        world.tick()


# --- placement ----------------------------------------------------------------------------------------------


PARTITIONS = 16


@some.composite
def placements(draw: some.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Owners of 16 partitions and a few dense blocks, and the servers that shall own them from now on."""
    blocks = draw(some.integers(1, 9))
    owners = draw(some.lists(some.integers(0, 5), min_size=PARTITIONS + blocks, max_size=PARTITIONS + blocks))
    servers = draw(some.lists(some.integers(0, 7), min_size=1, unique=True))
    return np.asarray(owners, np.uint16), servers


def fewest_moves(owners: list[int], servers: list[int]) -> int:
    """The definition: of all even shares the one that lets most units stay, found by trying all of them."""
    share, larger = divmod(len(owners), len(servers))
    owned = {rank: owners.count(rank) for rank in servers}
    gains = sorted((min(owned[rank], share + 1) - min(owned[rank], share) for rank in servers), reverse=True)
    stay = sum(min(owned[rank], share) for rank in servers) + sum(gains[:larger])
    return len(owners) - stay


class TestPlan:
    @settings(max_examples=200, deadline=None)
    @given(placements())
    def test_shares_are_even_and_no_other_server_owns_anything(
        self, given_: tuple[np.ndarray, list[int]]
    ) -> None:
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        assert after.dtype == np.uint16
        assert set(after.tolist()) <= set(servers)
        for units in (after[:PARTITIONS], after[PARTITIONS:]):
            counts = [int((units == rank).sum()) for rank in servers]
            assert max(counts) - min(counts) <= 1

    @settings(max_examples=200, deadline=None)
    @given(placements())
    def test_no_other_even_placement_moves_fewer_units(self, given_: tuple[np.ndarray, list[int]]) -> None:
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        for units in (slice(PARTITIONS), slice(PARTITIONS, None)):
            moved = int((after[units] != owners[units]).sum())
            assert moved == fewest_moves(owners[units].tolist(), servers)

    @settings(max_examples=100, deadline=None)
    @given(placements(), some.data())
    def test_a_plan_that_is_half_done_is_planned_on_to_the_same_end_and_no_unit_moves_twice(
        self, given_: tuple[np.ndarray, list[int]], data: some.DataObject
    ) -> None:
        """Nothing of a plan has to be remembered: what is left follows from the owners of the units."""
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        moving = np.flatnonzero(after != owners)
        done = data.draw(some.lists(some.sampled_from(moving.tolist()), unique=True)) if moving.size else []
        halfway = owners.copy()
        halfway[done] = after[done]
        on = even_owners(halfway, PARTITIONS, servers)
        assert (on[done] == after[done]).all()
        assert int((on != halfway).sum()) == moving.size - len(done)

    def test_an_even_map_stays_as_it_is(self) -> None:
        owners = PartitionMap.even(6, 7, ("a", "b", "c")).owners
        assert (even_owners(owners, 64, range(3)) == owners).all()

    def test_two_servers_give_half_of_their_units_to_two_new_ones(self) -> None:
        owners = PartitionMap.even(12, 64, ("a", "b")).owners
        after = even_owners(owners, 4096, range(4))
        assert np.bincount(after[:4096]).tolist() == [1024] * 4
        assert np.bincount(after[4096:]).tolist() == [16] * 4
        assert int((after != owners).sum()) == 2080

    def test_no_server_to_own_the_units_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one server"):
            even_owners(np.zeros(5, np.uint16), 4, ())
