"""Launching over ssh: two hosts (network namespaces) with a real sshd each."""

import json
import re
import sys
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.places.hosts import read_hosts
from launch.places.ssh import SshLauncher
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.processes.ssh_hosts import ADDRESSES, NET, run, write_hosts
from tests.support.processes.standin_launch import (
    assert_killed_trainer_is_named,
    processes_of,
    start_launcher,
)
from tests.support.waiting import wait_until


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
        run("ssh", "-F", str(two_hosts), address, f"cp {alone}/* {together}")
    assert main(["checkpoint", "verify", str(together)]) == 64
    assert (
        "its files are on several machines: bring them here, then rename manifest.incomplete.json"
        in capfd.readouterr().err
    )
    (together / "manifest.incomplete.json").rename(together / "manifest.json")
    assert main(["checkpoint", "verify", str(together)]) == 0
