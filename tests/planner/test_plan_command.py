"""``pslib plan`` and ``pslib bench calibrate``: readable, exact as JSON, and one line for every mistake."""

import json

import numpy as np
import pytest

from launch.calibration import calibrate, measure
from launch.calibration.calibrate import Run, _machine, run_rate
from launch.calibration.measure import fit_costs
from launch.cli.main import main
from launch.supervisor.run_spec import Outcome
from pslib.data.synthetic.generator import GeneratorConfig, generated_schema
from pslib.errors import PreemptedError, UnavailableError
from pslib.planner.coefficients import read_coefficients
from pslib.schema import Schema
from tests.support.planning import COSTS

PLAN = ["plan", "--rows", "5e9", "--dim", "16", "--optimizer", "rowwise_adagrad", "--examples-per-s", "2e6"]


def test_a_plan_is_a_short_table_with_reasons(capsys):
    assert main([*PLAN, "--machine", "cores=32,memory=256GB,network=25Gbit"]) == 0
    text = capsys.readouterr().out
    for word in ("servers", "trainers", "memory a server", "network a server", "checkpoint", "breaks first"):
        assert word in text
    assert "5,000,000,000 rows of 16 floats, 80,000,000,000 parameters, RowwiseAdagrad" in text
    assert len(text.splitlines()) < 40


def test_json_holds_the_question_the_answer_and_where_costs_come_from(capsys, tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(COSTS.to_dict()), encoding="utf-8")
    assert main([*PLAN, "--coefficients", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["cluster"]["servers"] >= 3
    assert plan["cluster"]["examples_per_s"] == 2e6
    assert plan["request"]["coefficients"]["machine"] == "a round machine"
    assert plan["limits"][0]["share"] >= plan["limits"][-1]["share"]


def test_parameters_stand_for_rows_of_all_parts(capsys):
    assert main(["plan", "--parameters", "100e9", "--dim", "1,16", "--trainers", "8"]) == 0
    assert "5,882,352,941 rows of 1 + 16 floats, 100,000,000,000 parameters" in capsys.readouterr().out


def test_sixteen_bits_on_the_wire_take_less_network(capsys):
    found = []
    for wire in ("float32", "bfloat16"):
        assert main([*PLAN, "--wire", wire, "--servers", "8", "--trainers", "8", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        found.append(plan["server_bit_s"] / plan["cluster"]["examples_per_s"])
    assert 0.5 < found[1] / found[0] < 0.75


def test_units_of_machines_are_read(capsys):
    machine = "cores=8,memory=64GiB,network=10Gbit,latency_us=20,open_files=65536"
    assert main([*PLAN, "--machine", machine, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)["request"]["machine"]
    assert read["memory_bytes"] == 64 * 1024**3
    assert (read["cores"], read["network_bit_s"], read["latency_us"], read["open_files"]) == (
        8,
        1e10,
        20,
        65536,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "expected one of --rows and --parameters"),
        (["plan", "--rows", "many"], "expected a number like 5e9 or 2M, got 'many'"),
        (["plan", "--rows", "5e9"], "expected a rate (examples_per_s) or a number of trainers, got neither"),
        ([*PLAN, "--machine", "cores=32"], "--machine: memory, network missing, expected as in cores=32,"),
        (
            [*PLAN, "--machine", "cores=x,memory=1GB,network=1Gbit"],
            "--machine: cores: got 'x', expected",
        ),
        (
            [*PLAN, "--machine", "disk=3"],
            "--machine: expected cores, memory, network, latency_us",
        ),
        ([*PLAN, "--optimizer", "lamb"], "--optimizer: expected one of SGD, Momentum"),
        ([*PLAN, "--wire", "float8"], "--wire: expected one of float32, bfloat16, float16, int8, got"),
        ([*PLAN, "--storage", "float8"], "storage: expected one of float32"),
        ([*PLAN, "--hidden", "4x4"], "expected whole numbers with commas between, got '4x4'"),
        ([*PLAN, "--coefficients", "absent.json"], "absent.json: can't be read"),
        ([*PLAN, "--dim", ""], "expected 1..8 parts, got 0"),
        (["plan", "--trainers", "4", "--rows", "0"], "rows: expected 1 or more, got 0"),
        (["plan", "--trainers", "4", "--rows", "1e400"], "expected a number like 5e9 or 2M, got '1e400'"),
        ([*PLAN, "--batch-rows", "0"], "batch_rows: expected 1 or more, got 0"),
        ([*PLAN, "--zipf", "nan"], "--zipf: expected 0 or more, got nan"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[-2:]),
)
def test_mistakes_end_with_64_and_one_line(arguments, message, capsys):
    assert main(arguments) == 64
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_costs_are_found_again_in_what_they_add_up_to():
    rng = np.random.default_rng(0)
    amounts = rng.random((12, 4)) * [1, 1000, 10, 1]
    true = np.array([100.0, 0.05, 3.0, 0.0])
    assert fit_costs(amounts, amounts @ true) == pytest.approx(true, rel=1e-6, abs=1e-6)


def test_a_cost_that_would_be_negative_is_zero_and_the_rest_still_fit():
    amounts = np.array([[1.0, 1.0], [1.0, 10.0], [1.0, 100.0]])
    costs = fit_costs(amounts, np.array([10.0, 9.0, 8.0]))
    assert costs[1] == 0
    assert costs[0] == pytest.approx(9, rel=0.05)


def test_a_run_has_a_name_for_people():
    assert Run(trainers=2).name == "1 server x 2 trainers, batch 2048, dim 16, 256-256"


def test_a_calibration_that_could_not_be_kept_is_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "calibrate", lambda **_how: pytest.fail("it was measured"))
    (tmp_path / "file").touch()
    for place, why in ((tmp_path, "it is a folder"), (tmp_path / "file" / "costs.json", "it is a file")):
        assert main(["bench", "calibrate", "--json", str(place)]) == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"pslib: --json: {place} can't be written: {why}; give another"


@pytest.mark.parametrize("code", [130, 75])
def test_a_calibration_that_a_user_ends_has_not_failed(tmp_path, monkeypatch, capsys, code):
    monkeypatch.setattr(calibrate, "run_cluster", lambda *_all: Outcome(code, [], {}, None))
    file = tmp_path / "costs.json"
    assert main(["bench", "calibrate", "--quick", "--json", str(file)]) == code
    assert "failed" not in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize(("code", "ends"), [(130, KeyboardInterrupt), (75, PreemptedError)])
def test_a_whole_run_of_a_calibration_that_a_user_ends_has_not_failed_either(
    tmp_path, monkeypatch, code, ends
):
    monkeypatch.setattr(calibrate, "run_job", lambda *_all, **_more: code)
    (tmp_path / "train.parquet").touch()
    with pytest.raises(ends):
        calibrate.run_rate(Run(), tmp_path, Schema(label="label", sparse=["user"]))


def test_calibration_measures_steps_and_trainings_with_the_products_that_it_is_asked_for(
    tmp_path, monkeypatch, capsys
):
    seen = []

    def in_trainer(_folder, settings, _threads):
        seen.append(settings["products"])
        raise UnavailableError("enough has been seen")

    monkeypatch.setattr(calibrate, "_in_trainer", in_trainer)
    for asked in (["--products", "bfloat16"], []):
        assert main(["bench", "calibrate", "--quick", *asked]) == 69
    assert seen == ["bfloat16", "float32"]
    monkeypatch.setattr(calibrate, "_in_trainer", lambda *_all: {"products": "float32"})
    monkeypatch.setattr(calibrate, "_coefficients", lambda *_all: in_trainer(None, {"products": ""}, 1))
    for asked, said in ((["--products", "bfloat16"], True), ([], False)):
        assert main(["bench", "calibrate", "--quick", *asked]) == 69
        line = "this machine has no fast bfloat16: it multiplies in float32\n"
        assert (line in capsys.readouterr().out) == said
    seen.clear()

    def threads(_model, _count, products):
        seen.append(products)
        raise UnavailableError("enough has been seen")

    monkeypatch.setattr(measure, "ModelThreads", threads)
    schema = generated_schema(GeneratorConfig())
    with pytest.raises(UnavailableError, match="enough"):
        measure.measure_steps(schema, 0.01, "bfloat16")

    def run_job(job, *_all, **_how):
        seen.append(job.training.products)
        return 1

    monkeypatch.setattr(calibrate, "run_job", run_job)
    (tmp_path / "train.parquet").touch()
    with pytest.raises(UnavailableError, match="ended with exit code 1"):
        run_rate(Run(products="bfloat16"), tmp_path, schema)
    assert seen == ["bfloat16", "bfloat16"]


@pytest.mark.timeout(300)  # four clusters of processes, one after the other
def test_calibrating_quickly_gives_coefficients_that_a_plan_takes(tmp_path, capsys):
    file = tmp_path / "costs.json"
    assert main(["bench", "calibrate", "--quick", "--json", str(file)]) == 0
    assert "quick: a rough guess" in capsys.readouterr().out
    costs = read_coefficients(file)
    for name in ("server_message_us", "client_message_us", "read_value_us", "loopback_mb_s", "together"):
        assert getattr(costs, name) > 0, name
    assert {cost.storage for cost in costs.tables} == {"float32", "bfloat16", "float16", "int8"}
    assert main([*PLAN, "--coefficients", str(file)]) == 0


def test_a_calibration_names_the_cores_that_it_had_and_a_quota_where_one_is_why(monkeypatch):
    monkeypatch.setattr("launch.calibration.calibrate.cores", lambda: 3)
    monkeypatch.setattr(
        "launch.calibration.calibrate.quota_words", lambda: " (a CPU quota allows 3.5 of 64 cores)"
    )
    assert _machine().endswith(", 3 cores (a CPU quota allows 3.5 of 64 cores)")
