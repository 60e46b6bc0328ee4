"""The Dockerfile: its steps run in a fresh Debian, and what they make trains as any user.

A stand-in for ``docker build``: no base image can be pulled everywhere, so each stage begins with Debian's
own Python in a root made by debootstrap. COPY and RUN are carried out as they stand there; caches and layers
are not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
INCLUDED = "python3,python3-dev,python3-pip,ca-certificates"
"""Packages of python:3.11-slim that a minimal Debian lacks."""
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TRAINING = """
import pslib
from rec_models import LR
data = {"y": [0, 1] * 500, "u": ["a", "b"] * 500}
with pslib.connect() as cluster:
    trainer = pslib.Trainer(LR(pslib.Schema(label="y", sparse=["u"])), cluster, progress=False)
    trainer.fit(data, epochs=5)
    print("AUC", trainer.evaluate(data).auc)
"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("debootstrap") is None,
        reason="needs root and debootstrap, which make a fresh Debian",
    ),
]


def steps_of(dockerfile: Path) -> list[list[tuple[str, str]]]:
    """Instructions and their text, of each stage."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    stages: list[list[tuple[str, str]]] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages


def test_the_steps_are_those_that_this_test_knows() -> None:
    """It would leave out any other in silence."""
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT"}
    stages = steps_of(ROOT / "Dockerfile")
    assert {word for stage in stages for word, _ in stage} <= known
    assert [rest.split()[0] for stage in stages for word, rest in stage if word == "FROM"] == [
        "python:3.11-slim-bookworm"
    ] * 2


@contextmanager
def debian(folder: Path) -> Iterator[Path]:
    """A fresh Debian in a folder."""
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", str(folder)], check=True
    )
    shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, folder / CERTIFICATES.relative_to("/"))
    for name in ("python", "pip"):
        (folder / "usr" / "local" / "bin" / name).symlink_to(f"/usr/bin/{name}3")
    subprocess.run(["mount", "-t", "proc", "proc", str(folder / "proc")], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder / "proc")], check=True)


def inside(root: Path, script: str, folder: str = "/", user: int = 0) -> str:
    """Run a script of the shell in a root; return what it prints."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "http", "no_proxy"))}
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["chroot", f"--userspec={user}:{user}", str(root), "/bin/sh", "-ec", f"cd {folder} && {script}"],
        env={**own, **variables, "PIP_BREAK_SYSTEM_PACKAGES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout[-4000:]}"
    return done.stdout


def copy_sources(target: Path) -> None:
    """Copy what git knows and .dockerignore does not leave out."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if name.split("/")[0] not in ignored and (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def test_the_image_is_built_in_a_fresh_debian_and_trains_as_any_user(tmp_path: Path) -> None:
    build, final = steps_of(ROOT / "Dockerfile")
    with debian(tmp_path / "build") as first, debian(tmp_path / "final") as second:
        folder = "/"
        for root, stage in ((first, build), (second, final)):
            for word, rest in stage:
                if word == "WORKDIR":
                    folder = rest.strip()
                    (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
                elif word == "COPY" and rest.startswith("--from=build "):
                    source, target = rest.split()[1:]
                    shutil.copytree(first / source.lstrip("/"), second / target.lstrip("/"))
                elif word == "COPY":
                    assert rest.split() == [".", "."]
                    copy_sources(root / folder.lstrip("/"))
                elif word == "RUN":
                    inside(root, rest, folder)
            folder = "/"
        assert inside(second, "pslib version", user=4242).startswith("pslib ")
        assert inside(second, f"python -c '{TRAINING}'", "/tmp", user=4242).endswith("AUC 1.0\n")
        assert inside(second, "command -v gcc || echo none", user=4242) == "none\n"
