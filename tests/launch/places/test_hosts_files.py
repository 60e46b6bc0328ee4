"""Hosts files of runs over ssh: what a line says, each mistake with its line, and the options around them."""

import os
import shlex
import socket
import subprocess

import pytest

from launch.cli.main import main
from launch.places.hosts import read_hosts
from launch.places.options import HostOptions, selected_launcher
from launch.places.ssh import SshLauncher
from launch.supervisor.run_spec import Task
from pslib.errors import ConfigurationError


def hosts_in(text: str):
    return read_hosts(text, "hosts.txt", "/here")


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        hosts_in(text)
    return list(caught.value.problems)


def test_a_host_with_nothing_said_runs_one_server_and_one_trainer_here_and_now():
    (host,) = hosts_in("127.0.0.1\n")
    assert (host.servers, host.trainers, host.python, host.dir) == (1, 1, "python3", "/here")


def test_a_host_with_one_count_runs_nothing_else():
    first, second = hosts_in("# two hosts\n10.0.0.1 servers=2\n\nme@10.0.0.2 trainers=3 dir=/data # gpu\n")
    assert (first.servers, first.trainers) == (2, 0)
    assert (second.servers, second.trainers, second.dir) == (0, 3, "/data")
    assert (second.name, second.address) == ("me@10.0.0.2", "10.0.0.2")


def test_a_host_of_ipv6_has_its_address_in_brackets():
    launcher = SshLauncher(hosts_in("node-a address=fd00::7\nnode-b address=fd00::8\n"), port=7077)
    assert launcher.listen(Task("coordinator", 0)) == "tcp://[fd00::7]:7077"
    assert launcher.listen(Task("server", 1)) == "tcp://[fd00::8]:0"


def test_a_name_stands_for_its_address_of_ipv4_if_it_has_one(monkeypatch):
    known = {"both": ["fd00::7", "10.0.0.7"], "newer": ["fd00::8"]}

    def addresses(host, port, **kind):
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in known[host]]
        return [(family, 1, 6, "", (one, 0)) for family, one in zip(families, known[host], strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    assert [one.address for one in hosts_in("both servers=1\nnewer trainers=1\n")] == ["10.0.0.7", "fd00::8"]


def test_the_home_of_a_host_is_its_own(tmp_path):
    hosts = hosts_in("127.0.0.1 servers=1 trainers=1 python=~/an_env/python dir=~/$work\n")
    command = SshLauncher(hosts).command(Task("trainer", 0))
    home = tmp_path / "home of many"
    (home / "an_env").mkdir(parents=True)
    (home / "$work").mkdir()
    python = home / "an_env" / "python"
    python.write_text('#!/bin/sh\npwd; echo "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "HOME": str(home)}
    said = subprocess.run(
        ["sh", "-c", command.arguments[-1]], env=env, capture_output=True, text=True, check=True
    )
    where, arguments = said.stdout.splitlines()
    assert where == str(home / "$work")
    assert arguments.startswith("-P -m pslib.process.own_packages launch.worker.main --guarded trainer")


def test_all_mistakes_of_a_hosts_file_are_told_at_once_with_their_lines():
    assert problems_of("10.0.0.1 server=2\n10.0.0.2 trainers=-1 python=\n10.0.0.3 nothing\n") == [
        "hosts.txt:1: server: unknown key, did you mean 'servers'?",
        "hosts.txt:2: trainers: expected a whole number from 0 to 4096, got '-1'",
        "hosts.txt:2: python: expected a text, got none",
        "hosts.txt:3: nothing: expected key=value",
    ]


@pytest.mark.parametrize("name", ["node..a", "n" * 64, f"me@{'n' * 64}.example.org"])
def test_a_name_that_no_host_can_have_is_a_host_that_is_not_known(name):
    assert problems_of(f"127.0.0.1\n{name} servers=1\n") == [
        f"hosts.txt:2: {name}: its address is not known here (no host can be named so); add address=IP"
    ]


def test_what_a_line_says_twice_is_refused():
    text = "10.0.0.1\n10.0.0.2 servers=1 dir=/a servers=2 dir=/a trainers=1 servers=3\n"
    assert problems_of(text) == [
        "hosts.txt:2: servers: expected once, got it 3 times",
        "hosts.txt:2: dir: expected once, got it 2 times",
    ]


def test_a_cluster_needs_a_server_and_a_trainer():
    assert problems_of("10.0.0.1 servers=2\n")[0].startswith("hosts.txt: expected at least one of trainers")
    assert problems_of("# nobody\n") == ["hosts.txt: expected at least one host, got none"]


def test_a_loopback_address_among_several_hosts_is_refused():
    assert (
        "localhost: the other hosts can't reach its address 127.0.0.1"
        in problems_of("localhost\n10.0.0.1\n")[0]
    )


def test_a_host_without_a_known_address_asks_for_one():
    assert "add address=IP" in problems_of("no-such-host.invalid\n")[0]


def test_hosts_that_other_machines_reach_are_named_for_their_keys(tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("10.0.0.1\n10.0.0.2\n")
    launcher = selected_launcher(HostOptions(on="ssh", hosts=str(hosts)))
    assert (launcher.count("server"), launcher.count("trainer")) == (2, 2)
    assert launcher.open_addresses == ["10.0.0.1", "10.0.0.2"]
    assert launcher.listen(Task("server", 1)) == "tcp://10.0.0.2:0"
    assert launcher.listen(Task("coordinator", 0)) == "tcp://10.0.0.1:0"


def test_loopback_hosts_need_no_keys(tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost servers=1 trainers=2\n")
    launcher = selected_launcher(HostOptions(on="ssh", hosts=str(hosts)))
    assert (launcher.open_addresses, launcher.count("server"), launcher.count("trainer")) == ([], 1, 2)


def test_a_run_over_ssh_that_is_to_go_on_is_given_the_same_options_again(tmp_path):
    hosts = tmp_path / "my hosts.txt"
    hosts.write_text("localhost\n")
    given = ["--on", "ssh", "--hosts", str(hosts), "--ssh-config", "my_config", "--insecure-network"]
    options = HostOptions(on="ssh", hosts=str(hosts), ssh_config="my_config", insecure_network=True)
    launcher = selected_launcher(options)
    assert shlex.split(launcher.options) == given


@pytest.mark.parametrize("command", ["launch", "train"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--on", "ssh"], "--on ssh needs --hosts FILE"),
        (["--on", "ssh", "--hosts", "/no/such/file"], "the hosts file can't be read: No such file"),
        (["--on", "ssh", "--hosts", "h", "--servers", "2"], "stand in the hosts file"),
        (["--hosts", "h"], "--hosts is for --on ssh"),
    ],
)
def test_a_wrong_way_to_ask_for_ssh_is_one_line_and_exit_code_64(command, arguments, words, capsys):
    assert main([command, *arguments, "script.py"]) == 64
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
