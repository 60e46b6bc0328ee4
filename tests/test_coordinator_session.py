"""The coordinator's machine, scene by scene: joining, leases as jobs, silence, and who leaves when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.config import ClusterConfig, Timing
from pslib.metrics.metrics import ScoreCounts
from pslib.protocol.codec import Codec
from pslib.protocol.collective_job import SCORES_KEPT
from pslib.protocol.coordinator_session import CoordinatorSession
from pslib.protocol.leases import stream_of
from pslib.protocol.messages import (
    Beat,
    Done,
    EndLease,
    Failure,
    Heartbeat,
    JobResult,
    Lease,
    Leave,
    Message,
    NextLease,
    OpenJob,
    Pull,
    Register,
    Registered,
    Result,
    Status,
    Stop,
)

CONFIG = ClusterConfig(
    servers=2, trainers=2, partition_bits=5, dense_blocks=4, timing=Timing(silence_s=6.0, start_s=60.0)
)
CODEC = Codec("demo")
NO_WINDOWS = np.zeros(0, np.uint32)


class Cluster:
    """A coordinator session, and everybody's side of the talk with it; all through the codec."""

    def __init__(self, trainers: int = 2) -> None:
        self.session = CoordinatorSession(CONFIG)
        self.now_s = 0.0
        for number in range(2):
            self.register("server", number)
        for number in range(2):
            self.beat("server", number)
        for number in range(trainers):
            self.register("trainer", number)

    def ask(self, message: Message) -> Any:
        received = CODEC.decode([bytes(frame) for frame in CODEC.encode(1, message)]).message
        answer = self.session.handle(self.now_s, received)
        return CODEC.decode([bytes(frame) for frame in CODEC.encode(1, answer)]).message

    def register(self, role: str, number: int) -> Any:
        return self.ask(Register(role, f"tcp://{role}:{number}", 100 + number, 7, "host"))

    def beat(self, role: str, rank: int, version: int = 1, **progress: Any) -> Any:
        return self.ask(Heartbeat(role, rank, 100 + rank, version, progress))

    def open(self, rank: int, job: int = 0, leases: int = 3, **changes: Any) -> Any:
        values = {"what": "fit", "fingerprint": 5, "details": {"epochs": 1, "examples": 30}} | changes
        windows = np.zeros(leases, np.uint32)
        return self.ask(OpenJob(rank, job, values["what"], values["fingerprint"], values["details"], windows))

    def lease(self, rank: int, holding: tuple[int, ...] = (), job: int = 0) -> Any:
        streams = np.array([stream_of(job, index) for index in holding], np.uint64)
        return self.ask(NextLease(rank, 100 + rank, job, streams))

    def end(self, rank: int, index: int, epoch: int = 0, job: int = 0, payload: Any = None) -> Any:
        return self.ask(EndLease(rank, 100 + rank, job, stream_of(job, index), epoch, payload or {}))

    def pass_time(self, seconds: float, *alive: tuple[str, int]) -> None:
        """Let time pass; only ``alive`` are heard."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            for role, rank in alive:
                self.beat(role, rank)
            self.session.tick(self.now_s)

    @property
    def status(self) -> dict[str, Any]:
        answer = self.ask(Status())
        assert isinstance(answer, Result)
        return dict(answer.values)


EVERYBODY = (("server", 0), ("server", 1), ("trainer", 0), ("trainer", 1))


class TestJoining:
    def test_the_answer_carries_rank_settings_and_map(self) -> None:
        answer = Cluster().register("trainer", 1)
        assert isinstance(answer, Registered)
        assert (answer.rank, answer.ready, answer.map_version) == (1, True, 1)
        assert ClusterConfig.from_dict(dict(answer.config)) == CONFIG
        assert answer.addresses == ["tcp://server:0", "tcp://server:1"]
        assert answer.owners.size == CONFIG.units

    def test_who_must_wait_is_told_for_whom(self) -> None:
        answer = Cluster(trainers=0).register("trainer", 0)
        assert (answer.ready, answer.missing) == (False, "1 of 2 trainers")

    def test_a_third_server_joins_and_its_address_is_told_to_all(self) -> None:
        cluster = Cluster()
        assert (cluster.register("server", 2).rank, cluster.beat("server", 2).order) == (2, "go")
        beat = cluster.beat("trainer", 0)
        assert (beat.map_version, beat.addresses[2]) == (2, "tcp://server:2")

    def test_an_unknown_role_is_refused(self) -> None:
        assert Cluster().register("chief", 0).code == "configuration"

    def test_a_map_is_sent_only_to_who_does_not_have_it(self) -> None:
        cluster = Cluster()
        assert cluster.beat("trainer", 0, version=1).owners.size == 0
        assert cluster.beat("trainer", 0, version=0).owners.size == CONFIG.units


class TestJobs:
    def test_leases_are_streams_and_end_once_all_their_batches_are_applied(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.lease(0) == Lease("held", stream_of(0, 0), 0, 0, 0)
        assert cluster.lease(1) == Lease("held", stream_of(0, 1), 1, 0, 0)
        assert cluster.lease(0, (0,)) == Lease("held", stream_of(0, 2), 2, 0, 0)
        assert cluster.lease(1, (1,)).state == "wait"
        for rank, index in ((0, 0), (1, 1), (0, 2)):
            assert cluster.ask(JobResult(0)).values["done"] is False
            assert cluster.end(rank, index) == Done()
        assert cluster.lease(1).state == "done"
        outcome = cluster.ask(JobResult(0)).values["outcome"]
        assert (outcome["kind"], outcome["examples"]) == ("fit", 30)

    def test_all_trainers_must_say_the_same(self) -> None:
        cluster = Cluster()
        assert cluster.open(0) == Done()
        assert cluster.open(1) == Done()
        answer = cluster.open(1, fingerprint=6)
        assert answer.code == "configuration"
        assert "all trainers must run the same script" in answer.text
        assert cluster.open(1, what="evaluate").code == "configuration"

    def test_a_job_can_not_be_opened_before_its_turn(self) -> None:
        assert Cluster().open(0, job=2).code == "configuration"

    def test_a_job_without_leases_is_done_at_once(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=0)
        assert cluster.ask(JobResult(0)).values["done"] is True
        assert cluster.lease(0).state == "done"

    def test_servers_hear_below_which_stream_all_is_done(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=2)
        cluster.lease(0)
        cluster.end(0, 0)
        assert cluster.beat("server", 0).streams_done_below == stream_of(0, 1)
        cluster.lease(0)
        cluster.end(0, 1)
        assert cluster.beat("server", 0).streams_done_below == stream_of(1, 0)

    def test_scores_of_a_lease_count_once_and_are_merged_exactly(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=2, what="evaluate")
        rng = np.random.default_rng(1)
        scores, labels = rng.random(40).astype(np.float32), rng.random(40) < 0.4
        for rank in range(2):
            cluster.lease(rank)
        for rank, half in enumerate((slice(0, 20), slice(20, 40))):
            counts = ScoreCounts.of(scores[half], labels[half])
            payload = dict(zip(("scores", "positives", "negatives"), counts.to_arrays(), strict=True))
            for _ in range(2):  # the answer was lost
                assert cluster.end(rank, rank, payload=payload) == Done()
        outcome = cluster.ask(JobResult(0)).values["outcome"]
        whole = ScoreCounts.of(scores, labels)
        assert outcome["auc"] == whole.auc()
        assert outcome["examples"] == 40

    def test_scores_of_many_leases_take_the_memory_of_the_distinct_ones(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=100, what="evaluate")
        counts = ScoreCounts.of(np.float32([0.25, 0.5]), np.array([0, 1])).to_arrays()
        payload = dict(zip(("scores", "positives", "negatives"), counts, strict=True))
        for index in range(99):
            cluster.lease(0, tuple(range(index)))
            cluster.end(0, index, payload=payload)
        kept = cluster.session.desk.jobs[0].scores
        assert sum(part.scores.size for part in kept) <= 2 * SCORES_KEPT
        assert sum(part.examples for part in kept) == 198

    def test_a_lease_with_a_broken_payload_is_not_over_and_its_scores_are_not_lost(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what="evaluate")
        cluster.lease(0)
        assert isinstance(cluster.end(0, 0, payload={"scores": np.zeros(1, np.float32)}), Failure)
        assert cluster.ask(JobResult(0)).values["done"] is False

    @pytest.mark.parametrize("text", [b"[1]", b'"done"', b"{", b"\xff", b"1"])
    def test_words_that_are_no_outcome_leave_a_window_open_for_whoever_looks_again(self, text: bytes) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what="window")
        cluster.lease(0)
        assert isinstance(cluster.end(0, 0, payload={"words": np.frombuffer(text, np.uint8)}), Failure)
        assert cluster.ask(JobResult(0)).values["done"] is False
        found = np.frombuffer(b'{"files": ["a"]}', np.uint8)
        assert isinstance(cluster.end(0, 0, payload={"words": found}), Done)
        assert cluster.ask(JobResult(0)).values["outcome"]["files"] == ["a"]

    def test_words_of_another_job_than_a_window_are_refused(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        words = np.frombuffer(b'{"examples": 7}', np.uint8)
        assert isinstance(cluster.end(0, 0, payload={"words": words}), Failure)
        assert cluster.ask(JobResult(0)).values["done"] is False

    @pytest.mark.parametrize("stream", [3, stream_of(1, 0), 2**64 - 1])
    def test_a_stream_that_is_no_lease_of_the_job_is_refused(self, stream: int) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.ask(EndLease(0, 100, 0, stream, 0, {})).code == "configuration"

    def test_only_members_get_leases(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert cluster.ask(NextLease(0, 999, 0, np.empty(0, np.uint64))).code == "fenced"
        assert cluster.ask(NextLease(9, 100, 0, np.empty(0, np.uint64))).code == "fenced"
        assert cluster.lease(0, job=7).code == "configuration"


class TestSilence:
    def test_the_leases_of_a_silent_trainer_go_to_the_others_where_it_stopped(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        cluster.beat("trainer", 0, streams=[[stream_of(0, 0), 3]])
        cluster.pass_time(7, *EVERYBODY[:2], EVERYBODY[3])
        assert cluster.lease(1) == Lease("held", stream_of(0, 0), 0, 1, 3)
        lost = "trainer 0 (pid 7 on host) is lost; its leases go to the others (1)"
        assert lost in cluster.status["events"]

    def test_who_was_silent_too_long_is_told_to_stop_and_gets_nothing_any_more(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        cluster.pass_time(7, *EVERYBODY[:2], EVERYBODY[3])
        beat = cluster.beat("trainer", 0)
        assert (beat.order, "silent too long" in beat.reason) == ("fail", True)
        assert cluster.lease(0).code == "fenced"
        assert cluster.end(0, 0).code == "fenced"

    def test_asking_for_work_is_a_sign_of_life(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        for _ in range(4):
            cluster.pass_time(4, *EVERYBODY[:2], EVERYBODY[3])
            cluster.lease(0)
        assert cluster.status["trainers"] == 2

    def test_a_lost_server_ends_the_run_and_the_line_names_it_and_what_was_lost(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        cluster.beat("server", 1, rows=1000, updates_applied=50)
        cluster.pass_time(7, EVERYBODY[0], *EVERYBODY[2:])
        beat = cluster.beat("trainer", 0)
        assert beat.order == "fail"
        assert beat.reason == (
            "server 1 at tcp://server:1 (pid 7 on host) has been silent for 6 s and counts as lost, "
            "with about 1,000 rows and 50 updates; there is no checkpoint"
        )
        assert cluster.status["phase"] == "failed"
        assert cluster.register("trainer", 5).code == "unavailable"

    def test_the_last_checkpoint_is_named(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1, what="save", details={"path": "runs/a"})
        cluster.lease(0)
        cluster.end(0, 0)
        cluster.pass_time(7, *EVERYBODY[:1], *EVERYBODY[2:])
        assert "the checkpoint runs/a is the last state" in cluster.status["error"]

    def test_when_all_trainers_are_lost_the_run_has_failed(self) -> None:
        cluster = Cluster()
        cluster.open(0)
        cluster.pass_time(7, *EVERYBODY[:2])
        assert cluster.status["error"] == "all trainers are lost before the work was done"
        assert cluster.beat("server", 0).order == "fail"

    @pytest.mark.parametrize("jobs", [0, 1])
    def test_a_script_whose_trainers_are_all_lost_between_two_calls_has_failed(self, jobs: int) -> None:
        cluster = Cluster()
        for _ in range(jobs):
            cluster.open(0, leases=1)
            cluster.lease(0)
            cluster.end(0, 0)
        cluster.pass_time(7, *EVERYBODY[:2])
        assert cluster.status["error"] == "all trainers are lost before the work was done"
        assert cluster.beat("server", 0).order == "fail"

    def test_a_trainer_that_is_lost_after_the_others_have_finished_is_no_failure(self) -> None:
        cluster = Cluster()
        cluster.ask(Leave("trainer", 0, 100, {}))
        cluster.pass_time(7, *EVERYBODY[:2])
        assert cluster.status["error"] is None
        assert cluster.beat("server", 0).order == "leave"


class TestLeaving:
    def _leave(self, cluster: Cluster, role: str, rank: int, **progress: Any) -> None:
        assert cluster.ask(Leave(role, rank, 100 + rank, progress)) == Done()

    def test_servers_stay_until_every_trainer_has_flushed(self) -> None:
        cluster = Cluster()
        self._leave(cluster, "trainer", 0)
        assert cluster.beat("server", 0).order == "go"
        self._leave(cluster, "trainer", 1)
        assert cluster.beat("server", 0).order == "leave"
        assert not cluster.session.over
        self._leave(cluster, "server", 0)
        self._leave(cluster, "server", 1)
        assert cluster.session.over
        assert cluster.status["phase"] == "done"

    def test_the_last_counters_come_with_the_goodbye(self) -> None:
        cluster = Cluster()
        cluster.beat("trainer", 0, pushes_sent=5)
        self._leave(cluster, "trainer", 0, pushes_sent=9)
        self._leave(cluster, "server", 0, pushes_applied=9, rows=4)
        status = cluster.status
        assert (status["pushes_sent"], status["pushes_applied"], status["rows"]) == (9, 9, 4)

    def test_a_heartbeat_that_comes_after_the_goodbye_does_not_take_its_counters_back(self) -> None:
        cluster = Cluster()
        self._leave(cluster, "trainer", 0, pushes_sent=9)
        cluster.beat("trainer", 0, pushes_sent=5)
        assert cluster.status["pushes_sent"] == 9

    def test_who_leaves_gives_its_leases_back(self) -> None:
        cluster = Cluster()
        cluster.open(0, leases=1)
        cluster.lease(0)
        self._leave(cluster, "trainer", 0)
        assert cluster.lease(1).epoch == 1

    def test_a_stop_tells_everybody_to_leave(self) -> None:
        cluster = Cluster()
        cluster.ask(Stop("enough", failed=False))
        assert cluster.beat("trainer", 0).order == "leave"
        assert cluster.beat("server", 0).order == "leave"

    def test_a_failed_stop_says_why(self) -> None:
        cluster = Cluster()
        cluster.ask(Stop("Ctrl-C", failed=True))
        assert (cluster.beat("trainer", 0).order, cluster.beat("trainer", 0).reason) == ("fail", "Ctrl-C")


class TestBrokenRequests:
    """One bad request must not end the one process that everybody needs."""

    @pytest.mark.parametrize(
        "message",
        [
            Pull({}, NO_WINDOWS),
            Beat("go", "", 0, 0, [], np.empty(0, np.uint16)),
            JobResult(2**64 - 1),
            OpenJob(0, 2**64 - 1, "fit", 1, {}, NO_WINDOWS),
            OpenJob(2**64 - 1, 0, "x" * 4000, 1, {}, NO_WINDOWS),
            Heartbeat("trainer", 0, 100, 1, {"streams": 5}),
            Heartbeat("trainer", 0, 100, 1, {"streams": [["a", "b"]]}),
            Heartbeat("trainer", 2**64 - 1, 100, 1, {}),
            EndLease(0, 100, 0, 0, 0, {"scores": np.zeros(3)}),
            Leave("trainer", 99, 100, {}),
        ],
    )
    def test_are_answered_and_the_session_goes_on(self, message: Message) -> None:
        cluster = Cluster()
        cluster.open(0)
        assert isinstance(cluster.ask(message), Failure | Beat | Done)
        assert cluster.lease(1).state == "held"
        assert cluster.status["trainers"] == 2


class TestStatus:
    def test_a_call_of_many_jobs_is_told_as_a_whole_until_it_is_over(self) -> None:
        cluster = Cluster(trainers=2)
        cluster.open(0, details={"epochs": 2, "examples": 60, "epochs_to_come": 3})
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (5, 150)
        cluster.open(0, job=1, details={"epochs": 2, "examples": 60, "epochs_to_come": 1})
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (5, 150)
        for role in ("trainer", "server"):
            for rank in range(2):
                cluster.ask(Leave(role, rank, 100 + rank, {}))
        assert cluster.session.over
        assert (cluster.status["epochs"], cluster.status["examples_total"]) == (4, 120)

    def test_whoever_waits_says_for_whom(self) -> None:
        cluster = Cluster(trainers=0)
        assert cluster.status["phase"] == "waiting for 2 of 2 trainers"
        cluster.register("trainer", 0)
        assert cluster.status["phase"] == "waiting for 1 of 2 trainers"
        cluster.register("trainer", 1)
        assert cluster.status["phase"] == "waiting for the first call of the trainers"
        cluster.open(0, leases=1)
        assert cluster.status["phase"] == "training"
        cluster.lease(0)
        cluster.end(0, 0)
        assert cluster.status["phase"] == "waiting for the next call of the trainers"
        for rank in range(2):
            cluster.ask(Leave("trainer", rank, 100 + rank, {}))
        assert cluster.status["phase"] == "waiting for 2 servers to leave"

    def test_a_look_changes_nothing(self) -> None:
        cluster = Cluster(trainers=2)
        before = cluster.session.members.plain()
        assert cluster.status["phase"].startswith("waiting")
        assert cluster.session.members.plain() == before
