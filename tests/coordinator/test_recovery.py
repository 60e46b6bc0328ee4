"""A server comes back without what it knew: whether it may, what it is told, what it does first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from launch.supervisor.restarts import is_mishap
from pslib.client.acknowledged import MOMENTS, Acknowledged
from pslib.client.calls import Part
from pslib.config import ClusterConfig
from pslib.coordinator.leases import DONE_BATCH
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import CheckpointCorruptError, CheckpointIncompatibleError, UnavailableError
from pslib.server.rejoin import FIRST_VALUES, Rejoin
from pslib.server.shard_thread import load_into
from pslib.shard.shard import Shard
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.fields import Message, json_array
from pslib.wire.messages import (
    NOBODY,
    Done,
    EndLease,
    Failure,
    Hand,
    Heartbeat,
    Lease,
    Load,
    Missing,
    NextHand,
    NextLease,
    OpenJob,
    Pull,
    Pushed,
    Register,
    Registered,
    Release,
    Result,
    Scale,
    Setup,
    Status,
    Witness,
)
from tests.client.test_acknowledged import call_of, part_of
from tests.support.checkpoints import GOLDEN, GOLDEN_DENSE, GOLDEN_TABLE
from tests.support.simulated.protocol_worlds import BITS, OneServer, push_ones

CONFIG = ClusterConfig(
    servers=2, trainers=1, partition_bits=5, dense_blocks=4, recovery="partial", restarts=3
)
SPEC = TableSpec("t", (PartSpec("v", 1),))
SETUP = Setup({"tables": [SPEC.to_dict()]}, 0, {}, np.empty(0, np.float32))
NO_UNITS = np.empty(0, np.uint32)
TRAINER = 2
"""Incarnation of the trainer; servers have 10 * generation + rank."""


class Cluster:
    """A coordinator, two servers and a trainer, all of them here."""

    def __init__(self, **settings: Any) -> None:
        self.session = CoordinatorSession(replace(CONFIG, **settings))
        self.now_s = 0.0
        for rank in range(2):
            self.server(rank, 0)
            self.ask(Heartbeat("server", rank, 10 + rank, 1, {}))
        self.ask(Register("trainer", "", TRAINER, 8, "host", 0))

    def ask(self, message: Message) -> Message:
        self.now_s += 0.1
        return self.session.handle(self.now_s, message)

    def server(self, rank: int, generation: int, empty: bool = True) -> Registered:
        about = (f"s{rank}.{generation}", 10 * (generation + 1) + rank, 7, "host", rank, generation, empty)
        answer = self.ask(Register("server", *about))
        assert isinstance(answer, Registered)
        return answer

    def open(
        self, what: str, number: int, details: dict[str, Any], leases: int, by_rank: bool = False
    ) -> None:
        windows = np.zeros(leases, np.uint32)
        self.ask(OpenJob(0, number, what, 1, details, windows, by_rank))

    def lease(self, job: int, *holding: int) -> Lease:
        answer = self.ask(NextLease(0, TRAINER, job, np.array(holding, np.uint64)))
        assert isinstance(answer, Lease)
        return answer

    def end(self, job: int, lease: Lease) -> None:
        self.ask(EndLease(0, TRAINER, job, lease.stream, lease.epoch, {}))


def test_only_a_server_that_knows_nothing_any_more_is_told_how_to_begin() -> None:
    cluster = Cluster()
    assert cluster.server(0, 1, empty=False).begins == {}
    begins = cluster.server(0, 2).begins
    assert (begins["loads"], begins["moment"], begins["released"]) == ([], "", [])
    assert cluster.server(0, 2).begins == begins, "however often it asks"
    assert Cluster(recovery="log", durability="log").server(0, 1, empty=False).begins == {}
    assert any(
        "begin at their first values: there is no checkpoint" in line for line in cluster.session.events
    )


def test_it_begins_where_all_was_saved_or_loaded_last() -> None:
    cluster = Cluster()
    rows_only = {"state": True, "tables": "t", "step": 3, "time_s": 0.0}
    whole = {"state": False, "tables": "", "step": 0, "time_s": 0.0}
    calls = [
        ("load", {"path": "a", "load": whole}, [{"path": "a", **whole}]),
        ("load", {"path": "b", "load": rows_only}, [{"path": "a", **whole}, {"path": "b", **rows_only}]),
        ("save", {"path": "c"}, [{"path": "c"}]),
    ]
    for number, (what, details, loads) in enumerate(calls):
        cluster.open(what, number, details, 1)
        cluster.end(number, cluster.lease(number))
        begins = cluster.server(1, number + 1).begins
        assert (begins["loads"], begins["moment"]) == (loads, f"job {number}")
        for plain in loads:
            Load(stem="any", **plain)  # its fields
    cluster.session.cuts.on_saved("d", "cut 7")
    begins = cluster.server(1, 9).begins
    assert (begins["loads"], begins["moment"]) == ([{"path": "d"}], "cut 7")


@pytest.mark.parametrize("what", ["save", "load"])
def test_it_begins_at_the_checkpoint_itself_that_a_call_was_about(what: str) -> None:
    """The call names the folder of several, for people, and without keys: its server died of it."""
    cluster = Cluster()
    place = "s3://KEY:SECRET@bucket/run/checkpoint-000003"
    load = {"load": {"state": True, "tables": "", "step": 0, "time_s": 0.0}} if what == "load" else {}
    cluster.open(what, 0, {"path": "s3://***@bucket/run"} | load, 1)
    lease = cluster.lease(0)
    for said in (7, place):
        payload = {"place": json_array(said)}
        answer = cluster.ask(EndLease(0, TRAINER, 0, lease.stream, lease.epoch, payload))
        assert isinstance(answer, Done if said == place else Failure)
    assert [plain["path"] for plain in cluster.server(1, 1).begins["loads"]] == [place]
    told = [cluster.session.registry.jobs[0].outcome, cluster.session.events, cluster.ask(Status())]
    assert "SECRET" not in str(told)


def test_it_is_told_how_far_leases_are_so_that_nothing_old_counts_again() -> None:
    cluster = Cluster()
    cluster.open("fit", 0, {}, 5)
    leases = [cluster.lease(0, *range(count)) for count in range(4)]
    cluster.end(0, leases[0])
    cluster.end(0, leases[2])
    cluster.ask(Heartbeat("trainer", 0, TRAINER, 1, {"streams": [[1, 4], [3, 0]]}))
    begins = cluster.server(0, 1).begins
    assert begins["done_below"] == 1
    assert begins["streams"] == [[1, 0, 4], [2, 0, DONE_BATCH], [3, 0, 0]]


def test_a_step_of_all_trainers_can_not_be_made_up_for() -> None:
    cluster = Cluster()
    cluster.open("fit", 0, {}, 2, by_rank=True)
    cluster.server(0, 1)
    assert "with consistency sync no step can go on without it" in cluster.session.error


def test_it_is_not_taken_for_its_predecessor_whose_address_it_has() -> None:
    """No client would have told it of tables, and all would have waited for it until the run was over."""
    cluster = Cluster()
    about = (31, 7, "host", 1, 1, True)
    answer = cluster.ask(Register("server", "s1.0", *about))
    assert isinstance(answer, Failure)
    assert answer.code == "configuration"
    assert answer.text == (
        "server 1 comes back without what it knew: expected another address than its predecessor's, got "
        "s1.0; with --listen and port 0 it takes any free one"
    )
    assert cluster.session.error == ""
    assert isinstance(cluster.ask(Register("server", "s1.1", *about)), Registered)
    assert isinstance(cluster.ask(Register("server", "s1.1", *about)), Registered), "it asks again"


def test_with_what_its_predecessor_knew_it_may_have_its_address() -> None:
    answer = Cluster().ask(Register("server", "s1.0", 31, 7, "host", 1, 1, False))
    assert isinstance(answer, Registered)


def test_a_loss_is_told_and_the_run_goes_on() -> None:
    cluster = Cluster()
    cluster.server(1, 1)
    cluster.ask(Missing(0, TRAINER, 1, 5, 40))
    assert (cluster.session.pushes_missing, cluster.session.error) == (5, "")
    assert "server 1 came back without 5 of the last 40 pushes" in cluster.session.events[-1]
    assert "it began at their first values" in cluster.session.events[-1]


def test_what_was_applied_still_counts_as_applied() -> None:
    cluster = Cluster()
    cluster.ask(Heartbeat("server", 1, 11, 1, {"pushes_applied": 7, "rows": 3}))
    cluster.server(1, 1)
    cluster.ask(Heartbeat("server", 1, 21, 1, {"pushes_applied": 2, "rows": 1}))
    status = cluster.ask(Status())
    assert isinstance(status, Result)
    assert (status.values["pushes_applied"], status.values["rows"]) == (9, 1)


# --- servers that come back from their logs ---

LOGGED: dict[str, Any] = {"recovery": "log", "durability": "log"}


def comes(cluster: Cluster, rank: int, generation: int, empty: bool = True) -> Message:
    """The answer to a server's next process."""
    about = (f"s{rank}.{generation}", 10 * (generation + 1) + rank, 7, "host", rank, generation, empty)
    return cluster.ask(Register("server", *about))


def test_a_server_whose_log_is_gone_ends_a_run_that_needs_it_and_begins_no_other_log() -> None:
    cluster = Cluster(**LOGGED)
    cluster.session.cuts.on_saved("c", "cut 7")
    answer = comes(cluster, 1, 1)
    assert isinstance(answer, Failure)
    assert answer.code == "unavailable"
    assert answer.text == cluster.session.error
    assert cluster.session.error == (
        "server 1 at s1.1 (pid 7 on host) has no log of what its predecessor knew; restore LOG/server-1 in "
        "place of the new folder, or start again from checkpoint c"
    )


def test_a_run_that_such_a_server_has_ended_is_known_to_the_next_coordinator() -> None:
    """Steps of the server after the end are in the journal, so its registration must be there too."""
    cluster, records = Cluster(**LOGGED), list[Any]()
    image = [cluster.session.image(1.0)]
    cluster.session.journal.append = records.append
    comes(cluster, 1, 1)
    cluster.session.tick(1_000.0)  # it counts as lost
    successor = CoordinatorSession(cluster.session.config, term=1)
    for record in (image, *records):
        successor.replay(record)
    assert successor.error == cluster.session.error
    assert [one.state for one in successor.members.servers] == ["lost", "lost"]
    assert successor.members.servers == cluster.session.members.servers


@pytest.mark.parametrize("durability", ["log", "disk"])
def test_a_server_whose_log_is_gone_is_noticed_each_time_the_run_goes_on(durability: str) -> None:
    """The journal's records of any predecessor show it, however often the run was resumed."""
    cluster, records = Cluster(recovery="log", durability=durability), list[Any]()
    images = [[cluster.session.image(1.0)]]
    for launch in range(1, 4):
        for number, record in enumerate(images + records):
            if number == 0:
                cluster.session = CoordinatorSession(cluster.session.config, term=launch)
            cluster.session.replay(record)
        cluster.session.journal.append = records.append
        cluster.session.resume(10.0 * launch)
        assert cluster.session.error == ""
        assert isinstance(comes(cluster, 0, 10 * launch, empty=False), Registered)
        if launch < 3:
            assert isinstance(comes(cluster, 1, 10 * launch), Failure)
        else:  # the user has found it
            assert isinstance(comes(cluster, 1, 10 * launch, empty=False), Registered)
            assert cluster.session.error == ""


def test_a_server_that_dies_before_it_has_begun_its_log_may_come_back_without_one() -> None:
    session = CoordinatorSession(replace(CONFIG, **LOGGED))
    for generation in range(2):  # the map is there with the second server; no member has said that it has it
        for rank in range(2):
            about = (f"s{rank}", 10 * generation + rank + 1, 7, "host", rank, generation, True)
            assert isinstance(session.handle(1.0, Register("server", *about)), Registered)
    assert session.error == ""


def test_a_server_that_owns_nothing_may_come_back_without_a_log() -> None:
    cluster = Cluster(**LOGGED)
    for generation in range(2):
        assert isinstance(comes(cluster, 2, generation), Registered)
        cluster.ask(Heartbeat("server", 2, 10 * (generation + 1) + 2, 1, {}))
    assert cluster.session.error == ""


def test_without_logs_no_server_misses_one() -> None:
    cluster = Cluster(recovery="log", durability="memory")
    assert isinstance(comes(cluster, 1, 1), Registered)
    assert cluster.session.error == ""


# --- units on their way ---


def wave_of(cluster: Cluster) -> Hand:
    """Server 0 is to give its units to server 1, and has asked which."""
    cluster.ask(Scale(1, [0], 5))
    for _ in range(3):
        for rank in range(2):
            cluster.ask(Heartbeat("server", rank, 10 + rank, 1, {}))
        cluster.ask(Heartbeat("trainer", 0, TRAINER, 1, {}))
        cluster.session.tick(cluster.now_s)
    answer = cluster.ask(NextHand(0, 10, 0, 0, "", NO_UNITS, NO_UNITS))
    assert isinstance(answer, Hand)
    assert answer.state == "hand"
    return answer


def test_a_server_that_gives_units_away_makes_them_again_from_the_checkpoint() -> None:
    cluster = Cluster()
    hand = wave_of(cluster)
    first = hand.units[:1]
    cluster.ask(NextHand(0, 10, hand.version, 9, "", first, NO_UNITS, [[1, "s1.0"]]))
    released = cluster.server(0, 1).begins["released"]
    assert released == [[unit, hand.version] for unit in hand.units.tolist()], "also what has arrived"


def test_units_that_were_given_to_it_are_given_once_more_whatever_is_said_of_its_predecessor() -> None:
    cluster = Cluster()
    hand = wave_of(cluster)
    first = hand.units[:1]
    cluster.ask(NextHand(0, 10, hand.version, 9, "", first, NO_UNITS, [[1, "s1.0"]]))
    cluster.server(1, 1)
    for _ in range(2):  # what comes late is about the old one
        again = cluster.ask(NextHand(0, 10, hand.version, 9, "", first, NO_UNITS, [[1, "s1.0"]]))
        assert isinstance(again, Hand)
        assert again.units.tolist() == hand.units.tolist()
        assert again.addresses[1] == "s1.1"
    there = cluster.ask(NextHand(0, 10, hand.version, 9, "", first, NO_UNITS, [[1, "s1.1"]]))
    assert isinstance(there, Hand)
    assert there.units.tolist() == hand.units[1:].tolist()


# --- the server ---

KEYS = np.arange(6, dtype=np.uint64)
BEGINS = {
    "loads": [{"path": "a"}],
    "moment": "cut 3",
    "done_below": 5,
    "streams": [[7, 1, 4]],
    "released": [],
}


def lost_server(**begins: Any) -> tuple[OneServer, list[Load]]:
    """A server of two shards that has lost what it knew; and the loads that it does."""
    server, loads = OneServer(2), list[Load]()
    for shard in server.shards:
        Rejoin.strip(shard)
    comes_back(server, {**BEGINS, **begins}, lambda _shard, message: loads.append(message))
    return server, loads


def comes_back(server: OneServer, begins: dict[str, Any], load: Callable[[Shard, Load], None]) -> None:
    """Let a server rejoin with these instructions and this load function; shards do their work at once."""
    shards = server.shards
    server.session.rejoin = Rejoin(begins, 3, shards, load, lambda index, work: work(shards[index]))


def ignored(server: OneServer, message: Message) -> bool:
    """Return True if a request gets no answer at all."""
    frames = [bytes(frame) for frame in server.codec.encode(1, message)]
    return server.session.receive(b"peer", frames) is None and not server.session.outbox


def test_no_request_is_answered_until_a_client_has_said_which_tables_there_are() -> None:
    server, loads = lost_server()
    no_blocks = np.empty(0, np.uint32)
    assert ignored(server, Pull({"t": KEYS}, no_blocks))
    assert ignored(server, push_ones(4, KEYS))
    assert ignored(server, replace(SETUP, without_values=True)), "blocks would have no first values"
    assert ignored(server, SETUP)
    assert [load.path for load in loads] == ["a", "a"], "one a shard"
    assert isinstance(server.ask(push_ones(4, KEYS, epoch=1)), Pushed)


def test_a_client_that_only_reads_rows_does_not_say_all_that_the_checkpoint_needs() -> None:
    """A notebook beside the run knows no dense parameters: the server died of its word, so the run ended."""
    server, refused = lost_server()[0], list[Load]()

    def load(shard: Shard, message: Load) -> None:
        if shard.dense is None:
            refused.append(message)
            raise CheckpointIncompatibleError("a: 8 dense parameters, expected 0")
        assert message not in refused, "a server keeps the outcome of a load by its name"

    comes_back(server, BEGINS, load)
    trainers = replace(
        SETUP, dense_length=8, dense_optimizer=SGD(1.0).to_dict(), dense=np.ones(8, np.float32)
    )
    assert ignored(server, SETUP)
    assert ignored(server, push_ones(4, KEYS, epoch=1)), "it has not begun yet"
    assert ignored(server, trainers)
    assert isinstance(server.ask(push_ones(4, KEYS, epoch=1)), Pushed)
    assert len(refused) == 2, "one a shard"


def test_a_checkpoint_that_does_not_fit_a_trainer_ends_the_server() -> None:
    server = lost_server()[0]

    def load(_shard: Shard, _message: Load) -> None:
        raise CheckpointIncompatibleError("a: 9 dense parameters, expected 8")

    comes_back(server, BEGINS, load)
    about = {"dense_length": 8, "dense_optimizer": SGD(1.0).to_dict(), "dense": np.ones(8, np.float32)}
    with pytest.raises(CheckpointIncompatibleError):
        ignored(server, replace(SETUP, **about))


def test_a_checkpoint_that_can_not_be_read_now_ends_the_server_as_one_that_may_be_started_again() -> None:
    """The checkpoint may have been pruned, or its store be away for a moment: the run ended with 64."""
    server = lost_server()[0]

    def load(_shard: Shard, _message: Load) -> None:
        raise CheckpointCorruptError("a: can't read rows-0.arrow: timeout")

    comes_back(server, BEGINS, load)
    with pytest.raises(UnavailableError, match=r"^can't come back: a: can't read .*: timeout$") as end:
        ignored(server, SETUP)
    assert is_mishap(end.value.exit_code)


def test_what_is_below_the_floor_of_its_lease_or_of_an_earlier_epoch_is_not_applied() -> None:
    server, _loads = lost_server()
    ignored(server, SETUP)
    server.ask(push_ones(3, KEYS, epoch=1))
    assert server.ask(push_ones(9, KEYS, epoch=0)).code == "fenced"
    server.ask(push_ones(9, KEYS, stream=2))
    assert [shard.stores["t"].rows for shard in server.shards] == [0, 0]
    server.ask(push_ones(4, KEYS, epoch=1))
    assert sum(shard.stores["t"].rows for shard in server.shards) == KEYS.size


@pytest.mark.parametrize(("moment", "said"), [("cut 3", "cut 3"), ("", FIRST_VALUES)])
def test_it_tells_its_clients_with_what_it_has_begun(moment: str, said: str) -> None:
    server, _loads = lost_server(moment=moment)
    ignored(server, SETUP)
    units = partition_of(KEYS[:1], BITS).astype(np.uint32)
    answer = server.ask(Witness(np.array([7], np.uint64), np.array([3], np.uint64), units))
    assert answer == Result({"unknown": 0, "began_with": [said, said]})


def test_units_that_were_on_their_way_are_released_again() -> None:
    unit = int(partition_of(KEYS[:1], BITS)[0])
    server, _loads = lost_server(released=[[unit, 1 << 16]])
    ignored(server, SETUP)
    assert not any(shard.owned >> unit & 1 for shard in server.shards)
    (shard,) = [one for one in server.shards if unit in one.moves.released]
    assert shard.refusals([unit]) == {unit: NOBODY}, "its next owner may have no tables before it is asked"
    shard.release(Release(unit, 1, 1 << 16))
    assert shard.refusals([unit]) == {unit: 1}


def test_blocks_of_two_lives_have_different_versions() -> None:
    spec = {"dense_length": 8, "dense_optimizer": SGD(1.0).to_dict()}
    setup = replace(SETUP, **spec, dense=np.ones(8, np.float32))
    lost, _loads = lost_server()
    ignored(lost, setup)
    plain = Shard(BITS, 4)
    plain.own(np.arange((1 << BITS) + 4))
    plain.setup(setup)
    assert plain.dense is not None
    for shard in lost.shards:
        assert shard.dense is not None
        assert all(version != plain.dense.versions[block] for block, version in shard.dense.versions.items())


def test_a_table_that_was_made_after_the_checkpoint_is_empty() -> None:
    """The server died of it, as a load refuses to leave a table as it is; so did each that came after it."""
    shard = Shard(5, 3)
    Rejoin.strip(shard)
    shard.own(np.arange(35))
    about = GOLDEN_DENSE.length, GOLDEN_DENSE.optimizer.to_dict(), np.zeros(GOLDEN_DENSE.length, np.float32)
    shard.setup(Setup({"tables": [SPEC.to_dict(), GOLDEN_TABLE.to_dict()]}, *about))
    assert load_into(shard, Load(str(GOLDEN), "1"))["rows"] == shard.stores["item"].rows > 0
    assert shard.stores["t"].rows == 0
    shard.bare = False
    with pytest.raises(CheckpointIncompatibleError, match="no table 't' in it"):
        load_into(shard, Load(str(GOLDEN), "2"))


# --- the client ---


def test_the_loss_is_what_was_acknowledged_since_the_moment_of_the_checkpoint() -> None:
    acknowledged = Acknowledged(BITS)
    for number in range(10):
        acknowledged.note(call_of(number, 3), part_of(number % 2))
        if number == 3:
            acknowledged.pause("cut 3")
    assert acknowledged.lost(0, "cut 3", 5) == (3, 5)
    assert acknowledged.lost(0, "cut 3", 5) == (0, 0), "nothing is told twice"
    assert acknowledged.lost(1, "a cut before it came", 5) == (5, 5)
    for number in range(MOMENTS):
        acknowledged.pause(f"cut {number + 4}")
    acknowledged.note(call_of(99, 3), part_of(1))
    assert acknowledged.lost(1, "cut 19", acknowledged.count(1)) == (1, 1)


def test_what_a_successor_has_acknowledged_before_it_says_what_it_knows_is_not_lost() -> None:
    acknowledged = Acknowledged(BITS)
    for number in range(3):
        acknowledged.note(call_of(number, 3), part_of(0))
    count = acknowledged.count(0)
    acknowledged.note(call_of(3, 3), part_of(0))
    assert acknowledged.lost(0, "", count) == (3, 3)
    question = acknowledged.question(0)
    assert question is not None
    assert question.numbers.tolist() == [3], "the next successor is asked about that one"
    assert acknowledged.lost(0, "", acknowledged.count(0)) == (1, 1)


def test_a_part_of_dense_gradients_alone_is_lost_like_others() -> None:
    acknowledged = Acknowledged(BITS)
    acknowledged.note(call_of(1, 3), part_of(0))
    acknowledged.note(call_of(2), Part(1, 0, {"t": None}, np.arange(2, dtype=np.uint32), 0))
    assert acknowledged.lost(0, "", acknowledged.count(0)) == (2, 2)
