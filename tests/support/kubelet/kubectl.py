"""Stand-in for kubectl: a program on PATH whose calls a `Kubelet` of this process carries out.

Kept: ``get`` as `launch.places.kubernetes.kubectl` asks (of all objects it shows the pods), ``scale``,
``patch`` of a Job's parallelism, and ``exec``. Any other call ends with exit code 1 and a line.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from tests.support.kubelet.kubelet import Kubelet

_PROGRAM = """\
#!{python} -I
import sys
from multiprocessing.connection import Client
with Client({address!r}) as test:
    test.send(sys.argv[1:])
    code, said, complained = test.recv()
print(said, end="")
print(complained, end="", file=sys.stderr)
sys.exit(code)
"""


@contextmanager
def kubectl_of(kubelet: Kubelet, folder: Path) -> Iterator[Path]:
    """Make the program in a folder, and carry out its calls meanwhile; yields the folder, for PATH."""
    address = str(folder / "calls")
    program = folder / "kubectl"
    program.write_text(_PROGRAM.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with Listener(address) as listener:
        thread = threading.Thread(target=_serve, args=(listener, kubelet), name="kubectl", daemon=True)
        thread.start()
        yield folder


def _serve(listener: Listener, kubelet: Kubelet) -> None:
    with suppress(OSError):  # it is closed
        while True:
            call: Connection = listener.accept()  # type: ignore[assignment, type-arg, unused-ignore]
            with call:
                call.send(_done(kubelet, call.recv()))


def _done(kubelet: Kubelet, words: Sequence[str]) -> tuple[int, str, str]:
    """Carry out a call; return its exit code, output and complaints."""
    match words:
        case ["get", "statefulset", name, *_]:
            return 0, str(kubelet.replicas(f"StatefulSet/{name}")), ""
        case ["get", "secret", name, *_]:
            return 0, f"secret/{name}\n" if kubelet.holds("Secret", name) else "", ""
        case ["get", "statefulsets,jobs", "--selector", _, "--output", what] if "ownerReferences" in what:
            owners = {pod.owner for pod in kubelet.pods() if pod.owner.endswith("-coordinator")}
            return 0, "".join(f"{owner.replace('/', ' ')} \n" for owner in owners), ""
        case ["get", _, "--selector", _, "--output", "wide"]:
            lines = (f"pod/{pod.name} {pod.phase} {pod.address} {pod.place.node}" for pod in kubelet.pods())
            return 0, "".join(f"{line}\n" for line in lines), ""
        case ["scale", "statefulset", name, "--replicas", number]:
            kubelet.scale(f"StatefulSet/{name}", int(number))
            return 0, f"statefulset.apps/{name} scaled\n", ""
        case ["patch", "job", name, "--type", "merge", "--patch", patch]:
            spec = json.loads(patch)["spec"]
            assert spec["parallelism"] == spec["completions"]
            kubelet.scale(f"Job/{name}", spec["parallelism"])
            return 0, f"job.batch/{name} patched\n", ""
        case ["exec", name, "--", *argv]:
            done = kubelet.exec(name, argv)
            return done.returncode, done.stdout, done.stderr
    return 1, "", f"error: the stand-in knows no call {' '.join(words)}\n"
