"""The job file that ``pslib describe`` writes has what one would turn, and trains as it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.job.job import read_job
from pslib.data.inspect.small_data import few_steps
from pslib.trainer.settings import OptimizerSettings
from rec_models import DeepFM

ROWS = 3000


def described(folder, *options: str, **more: object):
    choice = np.random.default_rng(7)
    columns = {"click": choice.integers(0, 2, ROWS), "user": choice.integers(0, 90, ROWS), **more}
    pq.write_table(pa.table(columns), folder / "clicks.parquet")
    assert (
        main(["describe", str(folder / "clicks.parquet"), "--out", str(folder / "job.yaml"), *options]) == 0
    )
    return folder / "job.yaml"


def test_it_sets_what_one_would_turn_each_with_a_comment_and_to_the_defaults_of_the_model(tmp_path):
    file = described(tmp_path)
    text, job = file.read_text(), read_job(file)
    lines = text.splitlines()
    for name in (
        *("test_share", "dim", "hidden", "rows", "dense", "batch_rows", "epochs", "servers", "trainers"),
    ):
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f"  {name}: "))
        assert "  # " in lines[at] or lines[at - 1].startswith("  # "), lines[at]
    assert max(map(len, lines)) <= 110
    model, default = job.build_model(), DeepFM(job.data.schema)
    assert isinstance(model, DeepFM)
    assert (model.dim, model.hidden) == (default.dim, default.hidden)
    assert [part.optimizer for part in model.table().parts] == [
        part.optimizer for part in default.table().parts
    ]
    assert job.optimizers.dense == OptimizerSettings().dense


def test_it_trains_one_epoch_in_batches_that_fit_the_rows(tmp_path):
    training = read_job(described(tmp_path)).training
    assert (training.batch_rows, training.epochs) == (128, 1)
    assert few_steps(ROWS, 4096, 1)
    assert few_steps(2700, training.batch_rows, training.epochs) is None


@pytest.mark.parametrize(
    ("options", "more", "share", "by"),
    [
        ((), {"time": pa.array(np.arange(ROWS), pa.timestamp("s"))}, 0.1, "time"),
        (("--test-share", "0.25"), {"time": pa.array(np.arange(ROWS), pa.timestamp("s"))}, 0.25, "time"),
        ((), {}, 0.1, None),
        (("--test-share", "0"), {}, 0, None),
    ],
    ids=["by time", "of another share", "by a hash", "none"],
)
def test_it_holds_rows_out_to_test_on(tmp_path, capsys, options, more, share, by):
    file = described(tmp_path, *options, **more)
    data = read_job(file).data
    assert (data.test_share, data.test_by) == (share, by)
    assert ("  # test: PATH" in file.read_text()) == (not share)
    assert ("\ntest: " in capsys.readouterr().out) == bool(share)


def test_settings_that_the_job_file_has_turned_are_not_warned_of(tmp_path, capsys):
    described(tmp_path)
    assert "too few" not in capsys.readouterr().out
    assert main(["describe", str(tmp_path / "clicks.parquet")]) == 0
    said = capsys.readouterr().out
    assert "warning: 1 epoch in batches of 4,096 takes 1 step, too few to learn from" in said
    assert "\n  test_share: 0.1 " in said


def test_servers_and_trainers_have_comments_of_their_own(tmp_path):
    text = described(tmp_path).read_text()
    assert "# Servers that hold the rows" in text
    assert "# Trainers that compute" in text
