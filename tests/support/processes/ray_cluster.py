"""A cluster of Ray with three nodes, all on this machine, for tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.waiting import wait_until

MARK = "PSLIB_TEST_RAY"
CPUS = 2
"""Of each node."""

FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,  # a lost node is noticed after 2.5 s, not 15
    "prestart_worker_first_driver": False,
}


class RayNodes:
    """The cluster, to which the process of the tests is connected.

    Everything that it starts inherits a mark in its environment. ``folder`` has the files of Ray.
    """

    def __init__(self, cluster: Any, mark: str, folder: Path) -> None:
        self.cluster, self.address, self.folder = cluster, cluster.address, folder
        self._mark = f"{MARK}={mark}".encode()

    def workers(self) -> list[psutil.Process]:
        """Processes of pslib on the nodes."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = self._mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if marked and "launch.worker.main" in process.cmdline():
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    def actor_of(self, pid: int) -> psutil.Process:
        """The actor that runs a worker."""
        return psutil.Process(pid).parent()

    def node_of(self, pid: int) -> Any:
        """The node that runs a worker; None: the first one, which holds the state of Ray itself."""
        raylet = self.actor_of(pid).ppid()
        nodes = {
            one.process.pid: node
            for node in self.cluster.worker_nodes
            for one in node.all_processes["raylet"]
        }
        return nodes.get(raylet)

    def left(self) -> list[str]:
        """Return the remains of runs: processes, placement groups, CPUs that are taken."""
        import ray

        groups = ray.util.placement_group_table().values()
        left = [f"group {one['name']}" for one in groups if one["state"] != "REMOVED"]
        left += [f"actor {one['name']}" for one in ray.util.list_named_actors(all_namespaces=True)]
        free, all_ = ray.available_resources().get("CPU", 0), ray.cluster_resources()["CPU"]
        left += [] if free == all_ else [f"{all_ - free} CPUs"]
        return left + [" ".join(one.cmdline()) for one in self.workers()]

    def assert_nothing_left(self) -> None:
        """Wait until nothing is left of the runs."""
        wait_until(lambda: not self.left(), 15, lambda: f"the end of {self.left()}")


@contextmanager
def ray_nodes(folder: Path) -> Iterator[RayNodes]:
    """A cluster of three nodes; skips the tests where Ray is not installed."""
    instead = "what is the launcher's alone is tested by test_ray_options.py beside it"
    ray = pytest.importorskip("ray", reason=f"needs Ray, pip install 'sparse-pslib[ray]'; {instead}")
    from ray.cluster_utils import Cluster

    # pytest's folder makes the paths of sockets too long
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as sockets,
    ):
        patch.setenv(MARK, mark := f"{os.getpid()}-{folder.name}")
        patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
        patch.setenv(
            "RAY_TMPDIR", sockets
        )  # else the cluster's address is written to /tmp/ray, if that is there
        Path(sockets, "ray").mkdir()
        first = {"num_cpus": CPUS, "_system_config": FAST, "temp_dir": sockets}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=CPUS)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield RayNodes(cluster, mark, Path(sockets))
        finally:
            ray.shutdown()
            cluster.shutdown()
