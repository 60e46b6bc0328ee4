"""Dense parameters beyond a message, or beyond a machine, are told before anything starts."""

import numpy as np
import pytest

from launch.job.job import Job
from launch.job.preflight import check_memory
from pslib.errors import ConfigurationError
from tests.launch.job.test_job_config import GOOD, problems, read


def check(job: Job, room_bytes: int | None = None) -> None:
    cluster = job.cluster
    check_memory(job.build_model(), job.optimizers.dense, cluster.trainers, cluster.servers, room_bytes)


def test_more_dense_parameters_than_can_be_set_up_are_refused_in_one_line(tmp_path):
    (line,) = problems(tmp_path, GOOD, "model.hidden=[65536, 65536, 65536]")
    assert "34.4 GB" in line
    assert "holds 1.1 GB" in line
    assert "65536 x 65536: lower the sizes of the model's layers" in line
    read(tmp_path, GOOD, "model.hidden=[8192, 8192]")


def test_dense_parameters_that_this_machine_has_no_memory_for_are_refused(tmp_path, monkeypatch):
    job = read(tmp_path, GOOD, "model.hidden=[1000, 1000]", "cluster.trainers=3", "cluster.servers=2")
    length = sum(np.prod(shape) for shape in job.build_model().dense_shapes().values())
    needed = 4 * length * (2 * 3 + 3)  # Adam keeps two numbers of each
    check(job, room_bytes=needed + 8)
    monkeypatch.setattr("launch.job.preflight.physical_bytes", lambda: needed - 8)
    with pytest.raises(
        ConfigurationError, match=r"this machine has 0\.0 GB; the largest is .* 1000 x 1000: "
    ):
        check(job, room_bytes=needed - 8)


def test_dense_parameters_that_a_container_may_not_take_are_refused_by_its_limit(tmp_path, monkeypatch):
    job = read(tmp_path, GOOD, "model.hidden=[1000, 1000]")
    check(job)
    monkeypatch.setattr("launch.job.preflight.memory_bytes", lambda: 1_000_000)
    with pytest.raises(
        ConfigurationError, match=r"and the limit of this container is 0\.0 GB; the largest is "
    ):
        check(job)
