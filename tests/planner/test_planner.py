"""A plan holds its rows, reaches its rate or says why not, and knows what breaks first."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.errors import ConfigurationError
from pslib.planner.coefficients import Coefficients, read_coefficients, shipped_coefficients
from pslib.planner.demand import Demand
from pslib.planner.limits import partition_bits
from pslib.planner.plan import HEADROOM, make_plan, plan_lines
from pslib.planner.scenes import one_machine_rate
from pslib.planner.workload import MachineSpec, Workload, distinct_share
from pslib.process.machine import allow_peers
from pslib.schema import Schema
from pslib.table.optimizers import Adam, Optimizer, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from rec_models import DeepFM
from tests.support.planning import COSTS, MACHINE, TABLE, costs, request, workload


def table(dim: int, optimizer: Optimizer, storage: str = "float32") -> TableSpec:
    return TableSpec("rows", (PartSpec("v", dim, optimizer),), storage=storage)


def test_memory_of_a_row_is_weights_state_and_the_measured_rest():
    assert workload(table=table(16, RowwiseAdagrad())).payload_bytes == 68
    assert workload(table=table(16, Adam())).payload_bytes == 4 * (16 + 33)
    assert workload(table=table(16, RowwiseAdagrad(), "bfloat16")).payload_bytes == 36
    assert workload(table=table(16, RowwiseAdagrad(), "int8")).payload_bytes == 16 + 4 + 4
    assert COSTS.row_bytes(68) == pytest.approx(68 * 1.02 + 20)


def test_dense_parameters_and_products_are_those_of_the_model():
    schema = Schema(label="click", dense=[f"i{n}" for n in range(13)], sparse=[f"c{n}" for n in range(26)])
    model = DeepFM(schema, dim=16, hidden=(400, 300))
    work = workload(hidden=(400, 300))
    assert work.dense_floats == sum(int(np.prod(shape)) for shape in model.dense_shapes().values())
    layers = [(429, 400), (400, 300), (300, 1)]
    assert work.multiply_adds == 3 * sum(n * m for n, m in layers)


@pytest.mark.parametrize("zipf", [0.0, 1.05])
@pytest.mark.parametrize("vocabulary", [3, 1_000, 300_000])
def test_the_share_of_distinct_keys_is_that_of_real_draws(zipf, vocabulary):
    rng = np.random.default_rng(1)
    chances = np.arange(1, vocabulary + 1) ** -zipf
    cumulative = np.cumsum(chances) / chances.sum()
    seen = [np.unique(np.searchsorted(cumulative, rng.random(4096))).size for _ in range(20)]
    assert distinct_share(4096, vocabulary, zipf) == pytest.approx(np.mean(seen) / 4096, rel=0.02)


def test_rows_of_widths_between_those_measured_cost_something_between():
    assert COSTS.row_us("float32", 36).pull_us == pytest.approx(0.06)
    assert COSTS.row_us("float32", 64).push_us == pytest.approx(0.12)
    assert COSTS.row_us("float32", 120).pull_us == pytest.approx(0.12)
    assert COSTS.row_us("float32", 1).pull_us > 0
    with pytest.raises(ConfigurationError, match=r"storage int8: .*measure it with: pslib bench calibrate"):
        COSTS.row_us("int8", 16)


def test_a_plan_leaves_room_in_memory_cores_and_network():
    plan = make_plan(request(examples_per_s=3e6))
    assert plan.problems == []
    assert plan.cluster.examples_per_s == 3e6
    assert plan.server_bytes < MACHINE.memory_bytes
    planned = {limit.name: limit.share for limit in plan.limits}
    for name in ("memory of a server", "cores of a server", "network of a server"):
        assert planned[name] <= HEADROOM + 0.01


@pytest.mark.parametrize("trainers", [1, 3, 8, 20])
def test_the_card_of_a_machine_carries_what_the_trainers_on_it_ask_for(trainers):
    plan = make_plan(request(servers=2, trainers=trainers))
    (limit,) = (one for one in plan.limits if one.name == "network of a trainer's machine")
    assert limit.share == pytest.approx(plan.trainer_bit_s / MACHINE.network_bit_s)


@pytest.mark.parametrize(("rate", "machines"), [(2e4, 1), (4e4, 2)])
def test_trainers_stand_on_as_many_machines_as_their_cards_need_and_no_more(rate, machines):
    slow = MachineSpec(cores=64, memory_bytes=256e9, network_bit_s=5e8)
    asked = request(workload(rows=1e8, hidden=(64,)), examples_per_s=rate)
    plan = make_plan(replace(asked, machine=slow))
    (limit,) = (one for one in plan.limits if one.name == "network of a trainer's machine")
    assert limit.share <= HEADROOM
    assert plan.cluster.trainer_machines == machines
    assert machines > 1 or plan.cluster.trainers == 1


def test_limits_come_with_the_tightest_first():
    plan = make_plan(request())
    assert all(above.share >= below.share for above, below in pairwise(plan.limits))
    names = {limit.name for limit in plan.limits}
    assert {"memory of a server", "messages of a server", "partitions", "open files of a process"} <= names
    assert {"network of a server", "cores of a trainer", "messages of the coordinator"} <= names


def test_two_plans_of_one_question_are_equal():
    assert make_plan(request()) == make_plan(request())


@settings(max_examples=8, deadline=None)
@given(st.floats(1e6, 1e11), st.floats(1.0, 20.0))
def test_more_rows_never_take_less_memory(rows, factor):
    few, many = (make_plan(request(workload(rows=n), trainers=4)) for n in (rows, rows * factor))
    assert many.cluster.servers * many.server_bytes >= few.cluster.servers * few.server_bytes * (1 - 1e-9)
    assert many.cluster.servers >= few.cluster.servers


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 64), st.integers(1, 3), st.integers(1, 6))
def test_more_cores_of_one_machine_never_predict_less(cores, servers, trainers):
    work = workload(batch_rows=1024, hidden=(64,))
    slow, fast = (
        one_machine_rate(work, COSTS, servers=servers, trainers=trainers, cores=n, batches=20)
        for n in (cores, 2 * cores)
    )
    assert fast.examples_per_s >= 0.95 * slow.examples_per_s


@settings(max_examples=6, deadline=None)
@given(st.floats(1e4, 3e6), st.floats(1.1, 4.0))
def test_a_higher_rate_never_takes_fewer_machines(rate, factor):
    slow, fast = (make_plan(request(examples_per_s=n)) for n in (rate, rate * factor))
    machines = [plan.cluster.servers + plan.cluster.trainers for plan in (slow, fast)]
    assert machines[1] >= 0.9 * machines[0]


def test_given_numbers_are_kept_and_the_rate_is_what_they_do():
    plan = make_plan(request(servers=3, trainers=5))
    assert (plan.cluster.servers, plan.cluster.trainers) == (3, 5)
    assert (plan.servers_because, plan.trainers_because) == ("given", "given")
    more = make_plan(request(servers=3, trainers=10))
    assert 1.5 < more.cluster.examples_per_s / plan.cluster.examples_per_s <= 2.1


def test_where_servers_do_not_help_the_plan_says_so():
    plan = make_plan(request(examples_per_s=1e9))
    assert plan.cluster.examples_per_s < 1e9
    assert any("larger batches: more servers do not help" in problem for problem in plan.problems)
    larger = make_plan(request(workload(batch_rows=65_536), examples_per_s=1e8))
    assert larger.cluster.examples_per_s > plan.cluster.examples_per_s


def test_a_large_cluster_is_simulated_by_a_small_one_with_about_the_same_rate():
    few = make_plan(request(servers=8, trainers=32)).cluster.examples_per_s
    many = make_plan(request(servers=16, trainers=64)).cluster.examples_per_s
    assert many == pytest.approx(2 * few, rel=0.1)


def test_rows_that_no_cluster_holds_are_refused_in_a_line():
    with pytest.raises(ConfigurationError, match=r"rows: .*4,096 are the most; take larger machines"):
        make_plan(request(workload(rows=1e15)))
    with pytest.raises(ConfigurationError, match="machine: memory: a server process alone takes 40 MB"):
        make_plan(request(machine=MachineSpec(2, 30e6, 1e9)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"examples_per_s": None}, "expected a rate"),
        ({"examples_per_s": 0.0}, "examples_per_s: expected more than 0, got 0"),
        ({"servers": 0}, r"servers: expected 1\.\.4096, got 0"),
        ({"trainers": -1}, r"trainers: expected 1\.\.65536, got -1"),
        ({"trainer_cores": 0}, "trainer_cores: expected 1 or more, got 0"),
    ],
)
def test_requests_out_of_range_are_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        request(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 0}, "rows: expected 1 or more, got 0"),
        ({"rows": 1e30}, r"rows: expected at most 2\^64, one a key, got 1e\+30"),
        ({"distinct": 0.0}, "distinct: expected a share above 0 and up to 1, got 0"),
        ({"hidden": (0,)}, "hidden: expected units of 1 or more"),
        ({"wire_float_bytes": 5}, "wire_float_bytes: expected above 0 and up to 4, got 5"),
    ],
)
def test_workloads_out_of_range_are_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        workload(**wrong)


def test_a_machine_needs_cores_memory_and_a_network():
    with pytest.raises(ConfigurationError, match="machine: cores: expected more than 0, got 0"):
        MachineSpec(0, 1e9, 1e9)
    with pytest.raises(ConfigurationError, match="latency_us: expected 0 or more, got -1"):
        MachineSpec(1, 1e9, 1e9, -1)


def test_partitions_are_sixteen_a_server_and_a_million_rows_each():
    assert partition_bits(1e6, 1) == 12  # the cluster's default
    assert partition_bits(1e6, 300) == 13
    assert partition_bits((1 << 20) * 5000, 1) == 13
    assert partition_bits(1e12, 4) == 20


def test_each_storage_and_wire_type_counts_in_bytes():
    whole = Demand(workload(), COSTS, 4)
    half = Demand(workload(wire_float_bytes=2.0), COSTS, 4)
    rows = whole.rows_each * TABLE.parts[1].dim + whole.rows_each
    assert whole.rows_bytes - half.rows_bytes == pytest.approx(2 * rows)
    assert whole.push_bytes - whole.rows_bytes == pytest.approx(8 * whole.rows_each)


def test_every_coefficient_changes_the_prediction_or_the_plan():
    """An unused cost would be measured in vain."""

    def answer(changed: Coefficients) -> tuple:
        plan = make_plan(request(costs=changed, servers=3, trainers=6))
        exact = one_machine_rate(workload(staleness=0), changed, servers=1, trainers=1, shard_threads=2)
        values = asdict(plan)
        del values["request"]
        return json.dumps(values, default=str), exact

    base = answer(COSTS)
    texts = {"machine", "date", "about", "tables", "trainer_process_bytes", "cores"}
    for name in asdict(COSTS).keys() - texts:
        assert answer(costs(**{name: getattr(COSTS, name) * 1.5})) != base, name


def test_coefficients_survive_a_file(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(COSTS.to_dict()), encoding="utf-8")
    assert read_coefficients(file) == COSTS


def test_coefficients_are_checked_with_all_problems_at_once(tmp_path):
    file = tmp_path / "costs.json"
    plain = COSTS.to_dict() | {"hop_us": -1, "colour": "red", "step_us": "much"}
    del plain["cores"]
    file.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        read_coefficients(file)
    text = str(caught.value)
    for part in ("cores is missing", "unknown 'colour'", "hop_us: expected a number", "step_us: expected"):
        assert part in text
    for bad, message in (
        ("[]", "expected an object"),
        ("{", "expected JSON"),
        ('{"format": 9}', "expected coefficients of format 2, got 9"),
        (json.dumps(COSTS.to_dict() | {"tables": [{"storage": "float32"}]}), "tables: expected floats"),
    ):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=message):
            read_coefficients(file)
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_coefficients(tmp_path / "absent.json")


def test_the_shipped_coefficients_say_their_machine_and_date_in_every_plan():
    shipped = shipped_coefficients()
    text = "\n".join(plan_lines(make_plan(request(costs=shipped))))
    assert f"cores like those of {shipped.machine}, measured {shipped.date}" in text
    storages = {cost.storage for cost in shipped.tables}
    assert storages == {"float32", "bfloat16", "float16", "int8"}


def test_text_names_what_breaks_first_and_what_does_not_run():
    lines = plan_lines(
        make_plan(request(servers=600, trainers=600, machine=replace(MACHINE, open_files=1024)))
    )
    text = "\n".join(lines)
    assert "what breaks first" in text
    assert "as it stands this does not run:" in text
    assert "ulimit -Hn" in text
    assert all(len(line) < 160 for line in lines)


@pytest.mark.parametrize("peers", [2, 464, 465, 900])
def test_a_plan_runs_out_of_files_where_the_program_does(peers, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _which: (1024, 1024))
    planned = make_plan(request(servers=1, trainers=peers - 1, machine=replace(MACHINE, open_files=1024)))
    (files,) = (one for one in planned.limits if one.name == "open files of a process")
    try:
        allow_peers(peers)
        assert files.share <= 1
    except ConfigurationError:
        assert files.share > 1


def test_a_workload_without_a_tower_has_no_products():
    linear = replace(workload(), hidden=())
    assert (linear.multiply_adds, linear.dense_floats) == (0, 1)
    assert isinstance(linear, Workload)
