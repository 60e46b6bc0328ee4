"""Contract of a process without a launcher: where its rank, its coordinator and its cluster come from."""

from __future__ import annotations

import pytest

from launch.places.identity import GivenIdentity, ProcessIdentity, address_toward, identity_of_process
from pslib.errors import ConfigurationError

WHERE = {"PSLIB_COORDINATOR": "tcp://c:7077", "PSLIB_CLUSTER_ID": "clicks"}
NOTHING = GivenIdentity()


def identity(
    role: str = "trainer", given: GivenIdentity = NOTHING, host: str = "node", **environment: str
) -> ProcessIdentity:
    return identity_of_process(role, given, environment, host, lambda host: f"from-{host}")


RANKS = {
    "RANK": "2",
    "SLURM_PROCID": "3",
    "JOB_COMPLETION_INDEX": "4",
}
"""Variables of schedulers, the strongest first."""


def test_an_option_is_stronger_than_a_variable_and_that_than_a_scheduler() -> None:
    everything = WHERE | RANKS | {"PSLIB_RANK": "1", "MASTER_ADDR": "m", "SLURM_JOB_ID": "9"}
    options = GivenIdentity(rank=0, coordinator="tcp://given:1", cluster_id="given")
    given = identity(given=options, host="clicks-trainer-5", **everything)
    assert (given.rank, given.coordinator, given.cluster_id) == (0, "tcp://given:1", "given")
    assert given.sources == {
        "cluster id": "--cluster-id",
        "coordinator": "--coordinator",
        "rank": "--rank",
    }
    own = identity(host="clicks-trainer-5", **everything)
    assert (own.rank, own.coordinator, own.cluster_id) == (1, "tcp://c:7077", "clicks")


def test_schedulers_give_the_rank_in_one_order_and_the_host_name_is_the_last_source() -> None:
    left = dict(RANKS)
    for name, rank in RANKS.items():
        found = identity(host="clicks-trainer-5", **WHERE, **left)
        assert (found.rank, found.sources["rank"]) == (int(rank), name)
        del left[name]
    found = identity(host="clicks-trainer-5", **WHERE)
    assert (found.rank, found.sources["rank"]) == (5, "host name clicks-trainer-5")


def test_torchrun_and_slurm_name_the_coordinators_host() -> None:
    torchrun = {"RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "t"}
    assert identity(**torchrun).coordinator == "tcp://10.0.0.1:29500"
    slurm = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "77", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.2"}
    found = identity(**slurm)
    assert (found.coordinator, found.cluster_id) == ("tcp://10.0.0.2:7077", "77")


def test_a_process_listens_at_the_address_of_its_pod_or_toward_the_coordinator() -> None:
    pod = identity("server", PSLIB_RANK="0", PSLIB_ADDRESS="10.1.0.7", **WHERE)
    assert pod.listen == "tcp://10.1.0.7:7078"
    ipv6 = identity("coordinator", PSLIB_ADDRESS="fd00::7", PSLIB_CLUSTER_ID="clicks")
    assert ipv6.listen == ipv6.coordinator == "tcp://[fd00::7]:7077"
    assert identity("server", PSLIB_RANK="0", **WHERE).listen == "tcp://from-c:0"
    assert identity(PSLIB_RANK="0", **WHERE).listen == ""


def test_the_line_of_a_process_names_the_source_of_each_value() -> None:
    line = identity("server", host="clicks-server-3", PSLIB_ADDRESS="10.1.0.7", **WHERE).line()
    assert line == (
        "server 3 of cluster clicks, coordinator tcp://c:7077 (cluster id by PSLIB_CLUSTER_ID, "
        "coordinator by PSLIB_COORDINATOR, rank by host name clicks-server-3, address by PSLIB_ADDRESS)"
    )


def test_all_that_nobody_says_is_told_at_once_with_the_names_that_were_looked_for() -> None:
    with pytest.raises(ConfigurationError) as refused:
        identity()
    lines = refused.value.problems
    assert [line.partition(":")[0] for line in lines] == ["cluster id", "coordinator", "rank"]
    for name in ("PSLIB_RANK", "RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        assert name in lines[2]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"PSLIB_RANK": "one"}, "PSLIB_RANK: expected a rank from 0 to 65535, got 'one'"),
        ({"PSLIB_RANK": "65536"}, "PSLIB_RANK: expected a rank from 0 to 65535, got '65536'"),
        (
            {"PSLIB_COORDINATOR": "http://c:1"},
            "PSLIB_COORDINATOR: expected tcp://host:port, got 'http://c:1'",
        ),
        ({"PSLIB_COORDINATOR": "c"}, "PSLIB_COORDINATOR: expected tcp://host:port, got 'c'"),
        ({"PSLIB_COORDINATOR": "c:99999"}, "PSLIB_COORDINATOR: expected tcp://host:port, got 'c:99999'"),
        ({"PSLIB_COORDINATOR": "c:\u00b2"}, "PSLIB_COORDINATOR: expected tcp://host:port, got 'c:\u00b2'"),
        ({"PSLIB_COORDINATOR": "c:0"}, "PSLIB_COORDINATOR: expected tcp://host:port, got 'c:0'"),
        ({"PSLIB_COORDINATOR": "a b:1"}, "PSLIB_COORDINATOR: expected tcp://host:port, got 'a b:1'"),
        ({"PSLIB_COORDINATOR": "::1:70"}, "PSLIB_COORDINATOR: expected tcp://host:port, got '::1:70'"),
        (
            {"PSLIB_ADDRESS": "10.0.0.1:7078"},
            "PSLIB_ADDRESS: expected tcp://host:port, got '[10.0.0.1:7078]:7078'",
        ),
        (
            {"PSLIB_ADDRESS": "0.0.0.0"},
            "PSLIB_ADDRESS: expected the address at which others reach the server, got 0.0.0.0",
        ),
        (
            {"PSLIB_CLUSTER_ID": "a\nb"},
            "PSLIB_CLUSTER_ID: expected up to 200 letters, digits and _ . : / -, got 'a\\nb'",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_source(wrong: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        identity("server", **({"PSLIB_RANK": "0"} | WHERE | wrong))
    assert str(refused.value) == line


def test_a_rank_of_any_length_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigurationError, match="PSLIB_RANK: expected a rank from 0 to 65535"):
        identity(**(WHERE | {"PSLIB_RANK": "1" * 5000}))


def test_an_ipv6_address_is_in_brackets_whoever_names_it() -> None:
    named = {"MASTER_ADDR": "fd00::7", "PSLIB_ADDRESS": "fd00::9"}
    found = identity("server", PSLIB_RANK="0", PSLIB_CLUSTER_ID="clicks", **named)
    assert found.coordinator == "tcp://[fd00::7]:7077"
    assert found.listen == "tcp://[fd00::9]:7078"


def test_a_coordinator_without_an_address_is_told_how_to_give_one() -> None:
    with pytest.raises(ConfigurationError, match="--listen or PSLIB_ADDRESS"):
        identity("coordinator", PSLIB_CLUSTER_ID="clicks")


def test_the_address_toward_this_machine_is_its_own_and_an_unknown_host_has_none() -> None:
    assert address_toward("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"a\.\.b can't be reached"):
        address_toward("a..b")
    with pytest.raises(ConfigurationError, match=r"no\.such\.host\.invalid can't be reached"):
        address_toward("no.such.host.invalid")
