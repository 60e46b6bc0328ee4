"""Places of tests: two hosts, a Slurm, a cluster of Ray; where one is absent its tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.ray_cluster import RayNodes, ray_nodes
from tests.support.processes.slurm_nodes import slurm_allocation, slurm_nodes
from tests.support.processes.ssh_hosts import ssh_hosts


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ssh configuration of two hosts."""
    with ssh_hosts(tmp_path_factory.mktemp("sshd")) as config:
        yield config


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of a Slurm of two nodes."""
    with slurm_nodes(tmp_path_factory.mktemp("slurm")) as config:
        yield config


@pytest.fixture
def allocation(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Number of a job of Slurm that has both nodes; this process is as if it were called in it."""
    with slurm_allocation(slurm, monkeypatch) as job:
        yield job


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A cluster of Ray of three nodes."""
    with ray_nodes(tmp_path_factory.mktemp("ray")) as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: RayNodes) -> Iterator[RayNodes]:
    """The cluster of Ray, on which nothing may be left after the test."""
    yield cluster
    cluster.assert_nothing_left()
