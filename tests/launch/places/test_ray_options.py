"""Options of a launch on Ray, and decisions of its launcher; a real cluster: test_ray_launch.py."""

import importlib.metadata
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launch.cli.main import main
from launch.places.ray_actor import ProcessActor
from launch.places.ray_cluster import groups_of
from launch.places.ray_process import RayProcess, Start
from tests.support.waiting import wait_until

INSTALLED = importlib.metadata.version


def with_version(monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    """Let Ray be installed in this version, or not at all."""

    def version(name: str) -> str:
        if name != "ray":
            return INSTALLED(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("launch.places.ray_cluster.version", version)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "--on ray: Ray is not installed; `pip install 'ray>=2.40'` brings it"),
        ("2.9.3", "--on ray: expected Ray 2.40 or newer, got 2.9.3; upgrade it"),
    ],
)
def test_a_missing_or_old_ray_is_one_line(monkeypatch, tmp_path, capsys, found, words):
    with_version(monkeypatch, found)
    assert main(["launch", "--on", "ray", "--out", str(tmp_path / "out"), "script.py"]) == 64
    assert capsys.readouterr().err == f"pslib: {words}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cpus", "0"], "--cpus: expected a whole number from 1 to 4096, got 0"),
        (["--address", "ray://head:10001"], "--address: expected HOST:PORT of a cluster or auto, got 'ray:"),
        (["--per-node", "servers=1"], "--per-node is for --on slurm; leave one of them out"),
    ],
)
def test_a_wrong_way_to_ask_for_ray_is_one_line(monkeypatch, capsys, options, words):
    with_version(monkeypatch, "2.60.0")
    assert main(["launch", "--on", "ray", *options, "script.py"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_an_address_at_which_no_cluster_answers_is_one_line(monkeypatch, tmp_path, capfd):
    pytest.importorskip("ray", reason="needs Ray, which tells it: pip install 'sparse-pslib[ray]'")
    launch = ("launch", "--on", "ray", "--out", str(tmp_path / "out"), "--address")
    assert main([*launch, "nonsense", "script.py"]) == 69
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("pslib: --address nonsense: no Ray cluster: ")
    assert "Invalid address format" in line
    monkeypatch.setattr("launch.places.ray_cluster.CONNECT_S", 3.0)
    assert main([*launch, "127.0.0.1:9", "script.py"]) == 69
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("pslib: --address 127.0.0.1:9: no Ray cluster: no answer in 3 s to this machine")
    assert not list(tmp_path.iterdir())


def test_trainers_stand_beside_servers_evenly():
    assert groups_of(2, 3) == [
        [("server", 0), ("trainer", 0), ("trainer", 2)],
        [("server", 1), ("trainer", 1)],
    ]


# --- the actor, here without Ray ---


def read_all(actor: ProcessActor) -> tuple[str, int]:
    """Read the output of an actor's process to its end; its exit code."""
    text = b""
    while True:
        data, code = actor.read()
        text += data
        if code is not None:
            return text.decode(), code


def test_an_actor_runs_a_process_in_a_folder_with_its_input_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/the/node")
    program = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], sys.stdin.read()); sys.exit(3)"
    actor = ProcessActor("server 0")
    assert actor.start(["-c", program], {"PYTHONPATH": "/first"}, str(tmp_path)) == ""
    actor.write(b"a key\n")
    actor.close()
    assert read_all(actor) == (f"{tmp_path} /first:/of/the/node a key\n\n", 3)
    actor.write(b"after its end")
    assert repr(actor) == "server 0"


def test_a_killed_process_is_told_by_128_and_the_signal_though_its_child_holds_the_output(tmp_path):
    program = (
        "import os, subprocess; child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"print(child.pid, flush=True); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    actor = ProcessActor("server 0")
    actor.start(["-c", program], {}, str(tmp_path))
    text, code = read_all(actor)
    os.kill(int(text), signal.SIGKILL)
    actor.close()
    assert code == 137


def test_a_folder_that_the_node_does_not_have_is_told(tmp_path):
    missing = tmp_path / "missing"
    assert (
        ProcessActor("server 0").start(["-c", ""], {}, str(missing))
        == f"{missing}: No such file or directory"
    )


# --- its local end, with a Ray that does what a test tells it ---


class RayError(Exception):
    """Stands for `ray.exceptions.RayError`."""


class LostError(RayError):
    """Stands for `ray.exceptions.RayActorError`."""


class LateError(RayError):
    """Stands for `ray.exceptions.GetTimeoutError`."""


class FakeActor:
    """An actor whose methods answer what they are told, in turn; what it was asked is in ``asked``."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = answers
        self.asked: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.killed = threading.Event()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Callable[[], Any]:
            self.asked.put((name, *arguments))
            return lambda: self._next(name)

        return SimpleNamespace(remote=remote, options=lambda **_: SimpleNamespace(remote=remote))

    def _next(self, name: str) -> Any:
        if not self._answers.get(name):
            self.killed.wait(20)
            raise LostError("The actor died.\n\tclass_name: A\nIt was killed.")
        answer = self._answers[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SimpleNamespace(
        get=lambda ask, timeout=None: ask(),
        kill=lambda actor: actor.killed.set(),
        exceptions=SimpleNamespace(RayError=RayError, RayActorError=LostError, GetTimeoutError=LateError),
    )
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setattr("launch.places.ray_process.PAUSE_S", 0.01)


def placed(*outputs: Any) -> FakeActor:
    """An actor on a node, whose worker prints this."""
    return FakeActor(node=[("id", "10.0.0.7")], start=[""], read=list(outputs))


@pytest.fixture
def run(fake_ray: None) -> Callable[..., RayProcess]:
    """Make the local end of a worker in these actors, one after the other."""

    def make(*actors: FakeActor, needed: bool = True) -> RayProcess:
        waiting = list(actors)
        return RayProcess(
            lambda: waiting.pop(0), lambda node, address: Start((node, address), {}, "/"), needed
        )

    return make


def ended(process: RayProcess) -> tuple[int | None, str]:
    """Return exit code and output of a process."""
    output = process.stdout.read().decode()
    wait_until(lambda: process.poll() is not None, 10, "its end")
    process.stdout.close()
    return process.poll(), output


def test_output_and_exit_code_come_from_the_actor_which_is_let_go(run):
    actor = placed((b"one\n", None), (b"two\n", None), (b"", 3))
    process = run(actor)
    assert ended(process) == (3, "one\ntwo\n")
    assert process.where == "10.0.0.7"
    assert actor.killed.is_set()


def test_input_from_before_the_start_comes_after_it_and_in_order(run):
    actor = placed()
    process = run(actor)
    process.stdin.write(b"key\n")
    process.stdin.close()
    asked = [actor.asked.get(timeout=10)[0] for _ in range(5)]
    assert [one for one in asked if one != "read"] == ["node", "start", "write", "close"]
    process.kill()
    assert ended(process) == (-signal.SIGKILL, "")
    process.stdin.write(b"to nobody")


def test_an_actor_that_never_ran_is_made_anew_and_one_that_is_lost_ends_the_process(run):
    lost = LostError("The actor died.\n\tclass_name: A\nIts node has died.")
    process = run(FakeActor(node=[lost]), placed((b"one\n", None), lost))
    assert ended(process) == (
        255,
        "one\npslib: its actor of Ray is lost: The actor died. Its node has died.\n",
    )


@pytest.mark.parametrize("needed", [True, False])
def test_a_process_for_which_no_node_has_room_says_so_and_ends_the_run_if_it_is_needed(run, needed):
    never_ran = FakeActor(node=[LostError("It never ran.")])
    code, output = ended(run(never_ran, FakeActor(node=[LateError()]), needed=needed))
    assert code == 69
    says = ["pslib: no node of Ray took it in 45 s: none has room; see ray status"]
    assert output.splitlines() == (["pslib-final "] if needed else []) + says


def test_a_worker_that_can_not_be_started_on_its_node_says_why(run):
    code, output = ended(
        run(FakeActor(node=[("id", "10.0.0.7")], start=["/data: No such file or directory"]))
    )
    assert (code, output) == (
        64,
        "pslib: it can't be started on 10.0.0.7: /data: No such file or directory\n",
    )
