"""Stands in for `launch.worker.main` in tests of launchers: processes that behave, or misbehave, as they are
told.

``STANDIN_DO`` says what to do, words separated by ``;``: ``result TEXT``, ``say TEXT``, ``arguments`` (print
them), ``first WORD`` (unless it was started again), ``spawn`` (a process of its own), ``stubborn`` (ignore
SIGTERM), ``exit CODE``, ``die``, ``sleep`` (for ever, or ``sleep SECONDS``), ``ready``, ``over`` and
``touch NAME`` (make a file), ``wait`` (until the file ``over`` is there, or ``wait NAME``), ``note NAME``
(its process id, in a file) and ``outlive NAME`` (wait until that process has ended, and its launcher knows).
``STANDIN_HOST`` is what its machine calls itself.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from launch.worker.watchdog import die_with_launcher

FOR_EVER = 600


def main() -> int:
    assert sys.argv[1] == "--guarded"
    die_with_launcher()
    folder = Path(os.environ["STANDIN_FOLDER"])
    print(f"pslib-started {os.getpid()} {os.environ.get('STANDIN_HOST', '')}".rstrip(), flush=True)
    if sys.argv[2] == "coordinator":
        print("pslib-listening tcp://127.0.0.1:1", flush=True)
    for word in os.environ["STANDIN_DO"].split(";"):
        verb, _, rest = word.partition(" ")
        if verb == "exit":
            return int(rest)
        ACTIONS[verb](rest, folder)
    return 0


def result(rest: str, folder: Path) -> None:
    print(f"pslib-result {json.dumps({'test': rest})}", flush=True)


def say(rest: str, folder: Path) -> None:
    print(rest, flush=True)


def arguments(rest: str, folder: Path) -> None:
    print(" ".join(sys.argv[3:]), flush=True)


def first(rest: str, folder: Path) -> None:
    if "--generation" not in sys.argv:
        verb, _, more = rest.partition(" ")
        ACTIONS[verb](more, folder)


def spawn(rest: str, folder: Path) -> None:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOR_EVER})"])


def stubborn(rest: str, folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def die(rest: str, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(rest: str, folder: Path) -> None:
    time.sleep(float(rest or FOR_EVER))


def wait(rest: str, folder: Path) -> None:
    while not (folder / (rest or "over")).exists():
        time.sleep(0.02)


def touch(rest: str, folder: Path) -> None:
    (folder / rest).touch()


def note(rest: str, folder: Path) -> None:
    (folder / rest).write_text(str(os.getpid()))


def outlive(rest: str, folder: Path) -> None:
    while not (pid := (folder / rest).read_text() if (folder / rest).exists() else ""):
        time.sleep(0.02)  # its process reports its start first, and others start then
    while Path("/proc", pid).exists():
        time.sleep(0.02)


def over(rest: str, folder: Path) -> None:
    (folder / "over").touch()


def ready(rest: str, folder: Path) -> None:
    (folder / f"ready-{os.getpid()}").touch()


_ACTIONS = (
    result,
    say,
    arguments,
    first,
    spawn,
    stubborn,
    die,
    sleep,
    wait,
    touch,
    note,
    outlive,
    over,
    ready,
)
ACTIONS = {action.__name__: action for action in _ACTIONS}

if __name__ == "__main__":
    sys.exit(main())
