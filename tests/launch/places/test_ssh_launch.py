"""Launching over ssh: two hosts (network namespaces) with a real sshd each."""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.places.hosts import read_hosts
from launch.places.ssh import SshLauncher
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.processes.standin_launch import (
    ROOT,
    assert_killed_trainer_is_named,
    processes_of,
    start_launcher,
)
from tests.support.waiting import wait_until

SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
NET = f"10.84.{os.getpid() % 250}"  # two runs of these tests at once would answer for each other
ADDRESSES = (f"{NET}.2", f"{NET}.3")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


INSTEAD = (
    "hosts files are tested everywhere in test_hosts_files.py beside it, and what is started, gathered "
    "and ended by the same launcher with processes of one machine in test_local_launch.py"
)


def _why_not() -> str | None:
    """Why this machine can't have two hosts; None when it can."""
    if os.geteuid() != 0:
        return f"needs root for network namespaces; {INSTEAD}"
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ip") is None:
        return f"needs openssh-server, openssh-client and iproute2; {INSTEAD}"
    name = f"pslib-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=20, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"network namespaces are not allowed here; {INSTEAD}"


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def namespaces() -> Iterator[list[str]]:
    """Names of two network namespaces that are not made yet; sshd will find its user in them.

    An image that was put together from files may have sshd without the user that its package makes: what
    ``ip netns exec`` finds in /etc/netns/NAME lies over /etc.
    """
    if why_not := _why_not():
        pytest.skip(why_not)
    users = Path("/etc/passwd").read_text()
    if not any(line.startswith("sshd:") for line in users.splitlines()):
        users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
    names = [f"pslib-{os.getpid()}-{place}" for place in (1, 2)]
    folders = [Path("/etc/netns") / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "passwd").write_text(users)
    yield names
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def two_hosts(namespaces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two network namespaces joined by a bridge, an sshd in each; gives the ssh configuration.

    ``disk`` beside that file is a folder of its own on each of them, and all else is shared.
    """
    folder = tmp_path_factory.mktemp("sshd")
    folder.chmod(0o755)
    bridge = f"pslib{os.getpid() % 100000}"
    for key in ("host_key", "user_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{address} {host_key}" for address in ADDRESSES))
    config = folder / "ssh_config"
    config.write_text(
        f"Host *\n IdentityFile {folder}/user_key\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {folder}/known_hosts\n StrictHostKeyChecking yes\n User {getpass.getuser()}\n"
    )
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/authorized_keys\nUsePAM no\nStrictModes no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\nPidFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "disk").mkdir()
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{NET}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for place, (name, address) in enumerate(zip(namespaces, ADDRESSES, strict=True)):
            inside, outside = f"{bridge}i{place}", f"{bridge}o{place}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
            _run("ip", "link", "set", inside, "netns", name)
            _run("ip", "link", "set", outside, "master", bridge, "up")
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", inside)
            _run("ip", "-n", name, "link", "set", inside, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            # `ip netns exec` gives a process mounts of its own: a disk that the other host does not see
            alone = f"mount -t tmpfs none {folder}/disk && exec {SSHD} -D -e -f {folder}/sshd_config"
            command = ["ip", "netns", "exec", name, "sh", "-c", alone]
            with (folder / f"sshd-{place}.log").open("wb") as log:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        wait_until(
            lambda: all(map(_listens, ADDRESSES)), 15, lambda: f"sshd:\n{(folder / 'sshd-0.log').read_text()}"
        )
        yield config
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=10)
        for name in namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, timeout=20, check=False)


def write_hosts(folder: Path) -> Path:
    hosts = folder / "hosts.txt"
    hosts.write_text("".join(f"{address} python={sys.executable} dir={ROOT}\n" for address in ADDRESSES))
    return hosts


@pytest.mark.root
def test_a_host_that_does_not_answer_ends_the_run_with_sshs_own_words(two_hosts, tmp_path, capsys):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"{NET}.9 python={sys.executable}\n")
    code = main(
        ["launch", "--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts),
         "--out", str(tmp_path), "script.py"]
    )  # fmt: skip
    error = capsys.readouterr().err
    assert code == 69
    assert f"coordinator ({NET}.9" in error
    assert "ended with exit code 255" in error
    assert "ssh: connect to host" in error or "Host key verification failed" in error


@pytest.mark.root
def test_a_run_over_ssh_gathers_results_and_names_a_killed_trainer(two_hosts, tmp_path):
    hosts = read_hosts(write_hosts(tmp_path).read_text(), "hosts.txt", "")
    assert_killed_trainer_is_named(tmp_path, SshLauncher(hosts, ssh_config=str(two_hosts)), ADDRESSES[0])


@pytest.mark.root
def test_processes_on_other_hosts_end_when_the_launcher_is_killed(two_hosts, tmp_path):
    behaviours = {
        "coordinator": "ready;sleep",
        "server": "ready;sleep",
        "trainer": "spawn;stubborn;ready;sleep",
    }
    launcher = start_launcher(tmp_path, behaviours, str(write_hosts(tmp_path)), str(two_hosts))
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_until(lambda: not processes_of(tmp_path), 15, "all processes to end")


SCRIPT = """\
import os, sys
import pslib
from pslib.transport.monitor import mechanism_at
from rec_models import LR

schema = pslib.Schema(label="label", sparse=["C1", "C2"])
with pslib.connect() as cluster:
    trainer = pslib.Trainer(LR(schema), cluster, batch_rows=256)
    trainer.fit(sys.argv[1] + "/train.parquet")
    result = trainer.evaluate(sys.argv[1] + "/test.parquet")
    servers = " ".join(sorted(address.rpartition(":")[0] for address in cluster.client.servers))
    encryption = {mechanism_at(address) for address in cluster.client.servers}
    print(os.readlink("/proc/self/ns/net"), os.getcwd(), result.examples, *encryption, servers)
"""


@pytest.mark.root
@pytest.mark.parametrize("network", [(), ("--insecure-network",)], ids=["encrypted", "plain"])
def test_a_script_trains_on_two_hosts_with_servers_and_trainers_on_both(two_hosts, tmp_path, capfd, network):
    generate(tmp_path / "data", GeneratorConfig(train_rows=8_000, test_rows=2_000, vocabularies=(50, 60)))
    (tmp_path / "script.py").write_text(SCRIPT)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("".join(f"{address} python={sys.executable} dir={tmp_path}\n" for address in ADDRESSES))
    out = tmp_path / "run"
    code = main(
        ["launch", "--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts), *network,
         "--out", str(out), "--quiet", "script.py", "data"]
    )  # fmt: skip
    said = capfd.readouterr()
    assert code == 0, said.err
    lines = [line.partition("] ")[2].split() for line in said.out.splitlines()]
    assert len({namespace for namespace, *_ in lines}) == 2
    for _, folder, examples, encryption, *servers in lines:
        assert encryption == ("NULL" if network else "CURVE")
        assert (folder, examples) == (str(tmp_path), "2000")
        assert servers == [f"tcp://{address}" for address in ADDRESSES]
    assert_all_counted(out)


def assert_all_counted(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert summary["examples"] == 8_000
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert (summary["servers"], summary["trainers"]) == (2, 2)


# --- a job file on two hosts ---


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job file whose data is there; its own numbers of processes do not count on hosts."""
    generate(tmp_path / "data", GeneratorConfig(train_rows=8_000, test_rows=2_000, vocabularies=(50, 60)))
    (tmp_path / "job.yaml").write_text(
        "data: {train: data/train.parquet, schema: {label: label, sparse: [C1, C2]}}\n"
        "model: {name: lr}\ntraining: {batch_rows: 256}\ncluster: {servers: 3, trainers: 5}\nout: run\n"
    )
    return tmp_path / "job.yaml"


@pytest.mark.root
def test_a_job_file_trains_on_two_hosts_and_leaves_its_checkpoint_in_the_shared_folder(two_hosts, job, capfd):
    hosts = write_hosts(job.parent)
    code = main(["train", str(job), "--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts)])
    assert code == 0, capfd.readouterr().err
    assert_all_counted(job.parent / "run")
    assert main(["checkpoint", "verify", str(job.parent / "run" / "checkpoint")]) == 0


@pytest.mark.root
@pytest.mark.parametrize("name", ["out", "checkpoint.path"])
def test_a_folder_that_hosts_do_not_share_is_told_before_anything_starts(two_hosts, job, capfd, name):
    hosts, alone = write_hosts(job.parent), two_hosts.parent / "disk" / "run"
    ssh = ["--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts)]
    assert main(["train", str(job), *ssh, "--set", f"{name}={alone}"]) == 64
    both = ", ".join(ADDRESSES)
    said = f"{alone} is not the same folder on {both}: all hosts must share it (NFS or the like)"
    assert capfd.readouterr().err == f"pslib: {name}: {said}\n"
    assert not (job.parent / "run").exists()
    assert not list(alone.parent.iterdir())


@pytest.mark.root
def test_a_host_that_can_not_be_asked_is_told_with_sshs_own_words(two_hosts, job, capfd):
    hosts = job.parent / "hosts.txt"
    hosts.write_text(f"{ADDRESSES[0]} python={sys.executable}\n{NET}.9 python={sys.executable}\n")
    ssh = ["--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts)]
    assert main(["train", str(job), *ssh]) == 69
    (error,) = capfd.readouterr().err.splitlines()
    assert error.startswith(f"pslib: {NET}.9: ssh ended with exit code 255: ")
    assert error.endswith(f"; try ssh {NET}.9 true")
    assert not (job.parent / "run").exists()


SAVING = """\
import sys
import pslib
from rec_models import LR

with pslib.connect() as cluster:
    trainer = pslib.Trainer(LR(pslib.Schema(label="label", sparse=["C1", "C2"])), cluster, batch_rows=256)
    trainer.fit(sys.argv[1])
    trainer.save(sys.argv[2])
"""


@pytest.mark.root
def test_a_checkpoint_in_pieces_on_two_hosts_is_none_and_can_be_put_together(two_hosts, job, capfd):
    (job.parent / "script.py").write_text(SAVING)
    hosts, alone = write_hosts(job.parent), two_hosts.parent / "disk" / "saved"
    ssh = ["--on", "ssh", "--hosts", str(hosts), "--ssh-config", str(two_hosts)]
    files = [str(job.parent / "script.py"), str(job.parent / "data" / "train.parquet"), str(alone)]
    assert main(["launch", *ssh, "--quiet", *files]) == 64
    assert re.search(r"2 of its 4 files are not there as .* sees that folder", capfd.readouterr().err)
    together = job.parent / "together"
    together.mkdir()
    for address in ADDRESSES:
        _run("ssh", "-F", str(two_hosts), address, f"cp {alone}/* {together}")
    assert main(["checkpoint", "verify", str(together)]) == 64
    assert (
        "its files are on several machines: bring them here, then rename manifest.incomplete.json"
        in capfd.readouterr().err
    )
    (together / "manifest.incomplete.json").rename(together / "manifest.json")
    assert main(["checkpoint", "verify", str(together)]) == 0
