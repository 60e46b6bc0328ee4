"""Membership of a cluster: joining, waiting for each other, falling silent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pslib.config import ClusterConfig, Timing
from pslib.coordinator.membership import Member, Membership, Wave

CONFIG = ClusterConfig(
    servers=2, trainers=2, partition_bits=5, dense_blocks=4, timing=Timing(silence_s=6.0, start_s=60.0)
)


def _join(members: Membership, role: str, incarnation: int, now_s: float = 0.0) -> Member:
    member = members.register(now_s, role, incarnation, f"tcp://{role}:{incarnation}", "pid 1 on host")
    assert isinstance(member, Member), member
    return member


def _servers_ready(config: ClusterConfig = CONFIG, **named: bool) -> Membership:
    members = Membership(config, **named)
    for incarnation in (1, 2):
        _join(members, "server", incarnation)
    for rank, incarnation in enumerate((1, 2)):
        members.heard(0.0, "server", rank, incarnation, map_version=1)
    return members


def test_ranks_count_up_in_each_role() -> None:
    members = Membership(CONFIG)
    assert [_join(members, "server", number).rank for number in (1, 2)] == [0, 1]
    assert [_join(members, "trainer", number).rank for number in (3, 4, 5)] == [0, 1, 2]


def test_a_trainer_that_names_no_rank_takes_none_of_those_that_a_launcher_gives() -> None:
    """A notebook joins while a run still starts: its own trainer found its place taken, and all ended."""
    members = _servers_ready(CONFIG, ranks_named=True)
    assert _join(members, "trainer", 3).rank == 2
    assert members.missing(0.0, "trainer") == "2 of 2 trainers"
    for rank, incarnation in enumerate((4, 5)):
        own = members.register(0.0, "trainer", incarnation, "", "pid 2 on host", rank=rank)
        assert isinstance(own, Member), own
    assert members.missing(0.0, "trainer") == ""
    assert [_join(members, "trainer", number).rank for number in (3, 6)] == [2, 3]


def test_a_trainer_that_comes_beside_the_awaited_ones_and_goes_does_not_end_the_run() -> None:
    members = _servers_ready(CONFIG, ranks_named=True)
    for incarnation in (3, 4):
        _join(members, "trainer", incarnation).state = "left"
    assert not members.trainers_over()


def test_a_process_that_asks_again_is_the_same_member() -> None:
    """The answer to a registration may be lost."""
    members = Membership(CONFIG)
    assert _join(members, "server", 1) is _join(members, "server", 1, now_s=3.0)
    assert members.servers[0].heard_s == 3.0


def test_the_map_is_made_when_all_servers_are_there_and_is_even() -> None:
    members = Membership(CONFIG)
    _join(members, "server", 1)
    assert members.map is None
    assert members.missing(0.0, "server") == "1 of 2 servers"
    _join(members, "server", 2)
    assert members.map is not None
    assert members.map.addresses == ("tcp://server:1", "tcp://server:2")
    assert np.bincount(members.map.owners).tolist() == [18, 18]
    assert members.missing(0.0, "server") == ""


def test_a_server_that_comes_later_joins_and_owns_nothing() -> None:
    members = _servers_ready()
    assert _join(members, "server", 3) is _join(members, "server", 3)
    assert members.servers[2].rank == 2
    assert members.map is not None
    assert (members.map.version, members.map.addresses[2]) == (2, "tcp://server:3")
    assert members.map.units_of(2).size == 0


def test_a_trainer_waits_until_every_server_has_taken_its_partitions() -> None:
    """Else its first push could come to a server that does not know yet what it owns."""
    members = Membership(CONFIG)
    for incarnation in (1, 2):
        _join(members, "server", incarnation)
    members.heard(0.0, "server", 0, 1, map_version=1)
    for incarnation in (3, 4):
        _join(members, "trainer", incarnation)
    assert members.missing(0.0, "trainer") == "server 1 at tcp://server:2 to take its partitions"
    members.heard(0.0, "server", 1, 2, map_version=1)
    assert members.missing(0.0, "trainer") == ""


def test_trainers_wait_for_each_other_but_not_for_ever() -> None:
    members = _servers_ready()
    _join(members, "trainer", 3, now_s=100.0)
    assert members.missing(110.0, "trainer") == "1 of 2 trainers"
    assert members.missing(131.0, "trainer") == ""
    assert members.missing(131.0, "trainer") == ""


def test_silence_makes_a_member_lost_once_and_for_good() -> None:
    members = _servers_ready()
    assert members.silent(6.0) == []
    members.heard(6.0, "server", 0, 1, 1)
    assert [member.rank for member in members.silent(7.0)] == [1]
    assert members.silent(8.0) == []
    assert members.heard(8.0, "server", 1, 2, 1) is None
    assert [member.rank for member in members.live("server")] == [0]


def test_another_incarnation_is_another_member() -> None:
    members = _servers_ready()
    assert members.heard(1.0, "server", 0, 99, 1) is None
    assert members.find("server", 7, 1) is None


def test_a_map_version_never_falls() -> None:
    members = _servers_ready()
    members.heard(1.0, "server", 0, 1, map_version=0)
    assert members.servers[0].map_version == 1


def test_trainers_are_over_when_all_that_were_here_have_gone() -> None:
    members = _servers_ready()
    assert not members.trainers_over()
    trainers = [_join(members, "trainer", number) for number in (3, 4)]
    assert members.missing(0.0, "trainer") == ""
    trainers[0].state = "left"
    assert not members.trainers_over()
    trainers[1].state = "lost"
    assert members.trainers_over()
    assert members.register(0.0, "trainer", 9, "", "") == (
        "the cluster's trainers have all left; start a new one"
    )


def test_a_new_server_is_welcome_while_the_successors_of_all_trainers_are_awaited() -> None:
    members = _servers_ready(replace(CONFIG, restarts=1))
    for trainer in [_join(members, "trainer", number) for number in (3, 4)]:
        members.lose(1.0, trainer)
    late_s = 1.1 + CONFIG.timing.restart_s
    assert (
        members.register(late_s, "server", 8, "a", "")
        == "the cluster's trainers have all left; start a new one"
    )
    assert isinstance(members.register(2.0, "server", 8, "a", ""), Member)


def test_trainers_are_over_when_all_have_come_and_gone_before_they_could_start() -> None:
    members = Membership(CONFIG)
    trainers = [_join(members, "trainer", 3)]
    trainers[0].state = "lost"
    assert not members.trainers_over()  # another is awaited
    trainers.append(_join(members, "trainer", 4))
    trainers[1].state = "lost"
    assert members.trainers_over()


def test_servers_are_over_when_none_is_live() -> None:
    members = _servers_ready()
    assert not members.servers_over()
    members.silent(100.0)
    assert members.servers_over()


# --- places and generations ---


def _successor(
    members: Membership, role: str, rank: int, generation: int, now_s: float = 0.0
) -> Member | str:
    number = 1000 + 10 * rank + generation
    address = f"tcp://{role}:{number}"
    return members.register(now_s, role, number, address, f"pid {number} on host", rank, generation)


def test_a_member_that_asks_for_a_place_gets_it_and_others_get_the_first_free_one() -> None:
    members = Membership(CONFIG)
    assert _successor(members, "trainer", 1, 0) is members.at("trainer", 1)
    assert [_join(members, "trainer", number).rank for number in (3, 4)] == [0, 2]


def test_a_higher_generation_takes_the_place_at_once_and_the_older_one_is_lost() -> None:
    members = _servers_ready()
    before, map_before = members.servers[1], members.map
    after = _successor(members, "server", 1, 1, now_s=2.0)
    assert isinstance(after, Member)
    assert (before.state, before.lost_s, after.state) == ("lost", 2.0, "live")
    assert members.heard(2.1, "server", 1, before.incarnation, 1) is None
    assert members.servers == [members.servers[0], after]
    assert members.ever("server") == [before, *members.servers]
    assert members.map is not None
    assert map_before is not None
    assert members.map.version == map_before.version + 1
    assert members.map.addresses == ("tcp://server:1", after.address)
    assert members.map.owners is map_before.owners


def test_no_newer_generation_has_no_place() -> None:
    members = _servers_ready()
    assert isinstance(_successor(members, "server", 0, 3), Member)
    for generation in (0, 2):
        refused = _successor(members, "server", 0, generation)
        assert isinstance(refused, str)
        assert refused.startswith("server 0 is generation 3 (pid 1003 on host); generation")
    assert isinstance(_successor(members, "server", 5000, 0), str)


def test_a_successor_is_awaited_only_where_a_launcher_may_start_one() -> None:
    for changes, role, awaited in (
        ({}, "trainer", False),
        ({"restarts": 1}, "trainer", True),
        ({"restarts": 1}, "server", False),
        ({"durability": "log"}, "server", True),
    ):
        members = _servers_ready(replace(CONFIG, **changes))
        for number in (3, 4):
            _join(members, "trainer", number)
        members.silent(10.0)
        restart_s = CONFIG.timing.restart_s
        assert bool(members.awaited(10.0 + restart_s, role)) == awaited, (changes, role)
        assert members.awaited(10.1 + restart_s, role) == []


def test_servers_that_come_later_may_come_in_any_order() -> None:
    """A launcher starts several at once."""
    members = _servers_ready()
    for rank in (3, 2):
        assert isinstance(_successor(members, "server", rank, 0), Member)
    assert members.map is not None
    assert members.map.version == 3
    assert members.map.addresses[2:] == tuple(member.address for member in members.servers[2:])


def test_a_server_that_units_are_on_their_way_to_counts_as_their_owner() -> None:
    """Some may have come when it dies. Taken off the map, its successor would be neither found nor missed."""
    for durability in ("log", "memory"):
        members = _servers_ready(replace(CONFIG, durability=durability))
        third = _join(members, "server", 3)
        assert [members.is_owner(one) for one in members.servers] == [True, True, False]
        members.wave = Wave(2**16, np.array([5]), np.array([0], np.uint16), np.array([third.rank], np.uint16))
        assert members.is_owner(third)
