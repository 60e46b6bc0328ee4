"""Launching on a real cluster of Ray, whose three nodes are on this machine."""

import json
import signal
from pathlib import Path

import pytest

from launch.cli.main import main
from pslib.errors import ConfigurationError
from pslib.ray import launch
from pslib.transport.keys import make_keys, write_keys
from tests.house.test_docs import ROOT, blocks
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import (
    ROWS,
    SCRIPT,
    Start,
    assert_ends_well,
    wait_for_successors,
    write_job,
)
from tests.support.processes.ray_cluster import RayNodes

SLOWLY = ("--pause-s", "0.5")
"""Two trainers are busy for 90 s, or until `Command.hurry`."""
START_S = 60
"""An actor is a new Python that imports Ray: 1.5 s of one core each."""


def counting(
    nodes: RayNodes, start: Start, folder: Path, examples: Path, *options: str, each: int = 2
) -> Command:
    """The counting script on Ray, with so many servers and trainers, once all are in their first batch."""
    sizes = ("--servers", str(each), "--trainers", str(each), "--out", folder / "out")
    where = ("--on", "ray", "--address", nodes.address)
    command = start("launch", *where, *sizes, *options, SCRIPT, examples, folder / "checkpoint", *SLOWLY)
    command.wait(lambda: len(command.lines("first batch")) == each, START_S, "all trainers to train")
    return command


def test_a_job_trains_beside_another_run_whose_launcher_is_killed_and_both_leave_nothing(
    nodes, start, examples, tmp_path
):
    other = counting(nodes, start, tmp_path, examples)
    places = {nodes.actor_of(other.pid_of(name)).ppid() for name in ("server 0", "server 1")}
    assert len(places) == 2
    (tmp_path / "job").mkdir()
    job = write_job(tmp_path / "job", examples, {}, {"servers": 1, "trainers": 1})
    command = start("train", job, "--on", "ray", "--address", nodes.address, "--quiet")
    command.wait(lambda: len(nodes.workers()) > 10, START_S, "both to run")  # each with its watchdog
    other.process.kill()
    assert command.finish(90) == 0, command.output
    summary = json.loads((tmp_path / "job" / "out" / "summary.json").read_text())
    assert (summary["examples"], summary["servers"], summary["trainers"]) == (ROWS, 1, 1)
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert other.finish(10) == -signal.SIGKILL


def test_processes_come_back_from_their_logs_after_their_actors_are_killed_and_after_a_node_is_lost(
    nodes, start, examples, tmp_path
):
    command = counting(nodes, start, tmp_path, examples, "--durability", "log")
    before = {name: command.pid_of(name) for name in ("coordinator", "server 0")}
    for pid in before.values():
        nodes.actor_of(pid).kill()
    wait_for_successors(command, before, START_S)
    where = {name: nodes.node_of(command.pid_of(name)) for name in ("server 0", "server 1", "trainer 0")}
    lost = next(node for name, node in where.items() if node is not None and name.startswith("server"))
    there = {name: command.pid_of(name) for name, node in where.items() if node is lost}
    nodes.cluster.remove_node(lost, allow_graceful=False)
    wait_for_successors(command, there, START_S)
    assert_ends_well(command, examples)
    lost = command.lines(": its actor of Ray is lost: ")  # once, where both say the same
    assert lost, command.output
    (line,) = command.lines("coordinator (")
    assert "ended with exit code 255; started again in 0.5 s (1 of 3); its log: " in line
    nodes.cluster.add_node(num_cpus=2)


def test_ctrl_c_ends_all_processes_in_order_and_no_secret_of_a_key_stands_in_files_of_ray(
    nodes, start, examples, tmp_path
):
    write_keys(tmp_path / "keys", keys := make_keys())
    command = counting(nodes, start, tmp_path, examples, "--keys", str(tmp_path / "keys"), each=1)
    command.process.send_signal(signal.SIGINT)
    assert command.finish(60) == 130, command.output
    assert "Traceback" not in command.output
    assert command.lines("got SIGINT: all leave in order")
    assert not nodes.left()  # not a moment later
    texts = [path.read_bytes() for path in nodes.folder.rglob("*") if path.is_file()]
    assert any(b"ProcessActor" in text for text in texts)
    assert not [role for role, own in keys.items() if any(own.secret.encode() in text for text in texts)]


def test_a_job_of_ray_launches_from_python_as_the_guide_says_and_stays_connected(
    nodes, examples, tmp_path, monkeypatch, capfd
):
    import ray

    write_job(tmp_path, examples, {}, {}).rename(tmp_path / "clicks.yaml")
    (script,) = blocks((ROOT / "docs" / "guide" / "deploy.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(tmp_path)
    exec(script, {})  # two trainers don't fit beside the server
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["examples"], summary["servers"], summary["trainers"]) == (2 * ROWS, 1, 2)
    assert ray.is_initialized()
    with pytest.raises(ConfigurationError, match="exit code 64"):
        launch("absent.yaml")
    assert "absent.yaml" in capfd.readouterr().err


def test_more_processes_than_the_cluster_has_cpus_are_refused_before_anything_is_made(
    nodes, examples, tmp_path, capsys
):
    job = write_job(tmp_path, examples, {}, {"servers": 3, "trainers": 2})
    assert main(["train", str(job), "--on", "ray", "--cpus", "2", "--quiet"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "Ray has 3 nodes with room for 3 servers and trainers of 2 CPUs each, got 3 + 2" in line
    assert not (tmp_path / "out").exists()


def test_room_that_another_job_holds_is_waited_for_a_limited_time(nodes, tmp_path, capsys, monkeypatch):
    from ray.util.placement_group import placement_group, remove_placement_group

    held = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="SPREAD")
    assert held.wait(10)
    monkeypatch.setattr("launch.places.ray_cluster.GROUPED_S", 0.1)
    monkeypatch.setattr("launch.places.ray_cluster.ROOM_S", 1.0)
    sizes = ("--servers", "2", "--trainers", "2")
    assert main(["launch", "--on", "ray", *sizes, "--out", str(tmp_path / "out"), "script.py"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert "Ray had no room in 1 s for 2 + 2 processes of 1 CPU each" in line
    assert not (tmp_path / "out").exists()
    remove_placement_group(held)
