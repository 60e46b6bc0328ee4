"""The end of a run and its message, derived from the exits of its processes."""

import pytest

from launch.supervisor.outcome import Verdict, judge
from launch.supervisor.process import describe_exit
from launch.supervisor.run_spec import Task

COORDINATOR = Task("coordinator", 0)
SERVERS = (Task("server", 0), Task("server", 1))
TRAINERS = (Task("trainer", 0), Task("trainer", 1))


def exits(coordinator=None, servers=(None, None), trainers=(None, None)):
    return dict(zip((COORDINATOR, *SERVERS, *TRAINERS), (coordinator, *servers, *trainers), strict=True))


def test_a_run_goes_on_while_all_processes_live():
    assert judge(exits()) is None


def test_a_server_that_is_killed_ends_the_run_and_is_named():
    assert judge(exits(servers=(None, -9))) == Verdict(69, SERVERS[1])


def test_a_coordinator_that_could_not_listen_ends_the_run_with_its_own_code():
    assert judge({COORDINATOR: 64}) == Verdict(64, COORDINATOR)


def test_servers_that_give_up_after_a_trainers_own_error_only_follow_it():
    assert judge(exits(servers=(None, 69), trainers=(64, None))) == Verdict(64)
    assert judge(exits(servers=(None, 69), trainers=(-9, None))) == Verdict(69, SERVERS[1])
    assert judge(exits(servers=(None, -9), trainers=(64, None))) == Verdict(69, SERVERS[1])


def test_a_run_whose_server_gives_up_is_no_run_that_was_asked_to_leave_while_a_trainer_lives():
    assert judge(exits(servers=(None, 69), trainers=(None, 75))) == Verdict(69, SERVERS[1])


def test_servers_that_give_up_with_the_trainers_of_one_that_was_asked_to_leave_only_follow_it():
    assert judge(exits(servers=(None, 69), trainers=(69, 75))) == Verdict(75)
    assert judge(exits(servers=(None, 69), trainers=(0, 75))) == Verdict(69, SERVERS[1])


def test_a_server_that_was_asked_to_leave_has_left_in_order_where_the_coordinator_has():
    assert judge(exits(coordinator=0, servers=(75, 0), trainers=(0, 0))) == Verdict(0)
    assert judge(exits(coordinator=0, servers=(75, None), trainers=(0, 0))) is None
    assert judge(exits(servers=(75, None), trainers=(0, 0))) == Verdict(75, SERVERS[0])
    assert judge(exits(coordinator=0, servers=(75, 0), trainers=(75, 75))) == Verdict(75)
    assert judge(exits(coordinator=0, servers=(75, -9), trainers=(0, 0))) == Verdict(69, SERVERS[1])


def test_a_dead_trainer_does_not_end_the_run_while_another_lives():
    assert judge(exits(trainers=(-9, None))) is None


@pytest.mark.parametrize("code", [1, 64])
def test_a_trainers_own_error_ends_the_run_whatever_the_others_do(code):
    for other in (None, 0, -9, 255):
        assert judge(exits(trainers=(other, code))) == Verdict(code)
    assert judge(exits(coordinator=0, servers=(0, 0), trainers=(0, code))) == Verdict(code)


@pytest.mark.parametrize("code", [-9, 137, 255, 69, 70])
def test_a_trainer_that_may_do_better_next_time_leaves_the_run_to_the_others(code):
    assert judge(exits(trainers=(None, code))) is None
    assert judge(exits(coordinator=0, servers=(0, 0), trainers=(0, code))) == Verdict(0)


def test_a_trainer_that_was_asked_to_leave_is_why_the_others_could_not_go_on():
    for codes in ((69, 75), (75, 69), (75, -9), (70, 75)):
        assert judge(exits(trainers=codes)) == Verdict(75)
    assert judge(exits(coordinator=0, servers=(0, 0), trainers=(75, 0))) == Verdict(0)


def test_the_run_waits_for_servers_after_the_last_trainer():
    assert judge(exits(trainers=(0, 0))) is None
    assert judge(exits(coordinator=0, servers=(0, None), trainers=(0, -9))) is None


def test_the_run_is_done_when_all_have_left_and_one_trainer_finished():
    assert judge(exits(coordinator=0, servers=(0, 0), trainers=(-9, 0))) == Verdict(0)


def test_a_script_may_go_on_after_the_cluster_has_ended_in_order():
    assert judge(exits(coordinator=0, servers=(0, 0), trainers=(None, 0))) is None


@pytest.mark.parametrize(
    ("codes", "code"), [((64, -9), 64), ((-9, -9), 69), ((70, 70), 70), ((255, 70), 69), ((69, 75), 75)]
)
def test_a_run_without_a_trainer_that_finished_fails_with_the_first_ones_code(codes, code):
    assert judge(exits(trainers=codes)) == Verdict(code)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by signal 9 (SIGKILL)"),
        (137, "was killed by signal 9 (SIGKILL)"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (64, "ended with exit code 64"),
        (130, "ended with exit code 130"),
        (255, "ended with exit code 255"),
    ],
)
def test_an_end_is_told_in_words(code, words):
    assert describe_exit(code) == words
