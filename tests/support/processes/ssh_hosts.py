"""Two hosts for tests: network namespaces of this machine, with a real sshd each."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.standin_launch import ROOT
from tests.support.waiting import wait_until

SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
NET = f"10.84.{os.getpid() % 250}"  # two runs of these tests at once would answer for each other
ADDRESSES = (f"{NET}.2", f"{NET}.3")


def run(*words: str) -> None:
    """Run a command, which must end well."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


INSTEAD = (
    "hosts files are tested everywhere in test_hosts_files.py beside it, and what is started, gathered "
    "and ended by the same launcher with processes of one machine in test_local_launch.py"
)


def _why_not() -> str | None:
    """Return the reason that this machine can't have two hosts; None when it can."""
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


@contextmanager
def _namespaces() -> Iterator[list[str]]:
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
    try:
        yield names
    finally:
        for folder in folders:
            shutil.rmtree(folder)


@contextmanager
def ssh_hosts(folder: Path) -> Iterator[Path]:
    """Two network namespaces joined by a bridge, an sshd in each; yields the ssh configuration.

    ``disk`` beside that file is a folder of its own on each of them, and all else is shared.
    """
    with _namespaces() as namespaces:
        yield from _joined(namespaces, folder)


def _joined(namespaces: list[str], folder: Path) -> Iterator[Path]:
    folder.chmod(0o755)
    bridge = f"pslib{os.getpid() % 100000}"
    for key in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
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
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        for place, (name, address) in enumerate(zip(namespaces, ADDRESSES, strict=True)):
            inside, outside = f"{bridge}i{place}", f"{bridge}o{place}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
            run("ip", "link", "set", inside, "netns", name)
            run("ip", "link", "set", outside, "master", bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", inside)
            run("ip", "-n", name, "link", "set", inside, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
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
    """Write the hosts file of both; return its path."""
    hosts = folder / "hosts.txt"
    hosts.write_text("".join(f"{address} python={sys.executable} dir={ROOT}\n" for address in ADDRESSES))
    return hosts
