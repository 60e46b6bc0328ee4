"""Online learning, whole: clicks arrive, are predicted, trained on, and served half a second later.

``python examples/news/run.py [--hours 6] [--pace-s 0.5] [--out runs/news]`` starts a training that takes
files of clicks as they arrive (train.py), and two servers of its model: one follows the training, the other
takes the checkpoint of each hour. Every file is predicted by both before it is trained on. Tastes of the
planted readers drift (clicks.py), so the model of an hour ago falls behind: "true hourly" is what the true
probabilities lose when they are those of the hour's begin. It needs the extras serve and plot.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from clicks import FILES_AN_HOUR, clicks, probability
from numpy.typing import NDArray

from pslib.metrics.metrics import ScoreCounts
from pslib.serving.client import ScoringClient

PSLIB = [sys.executable, "-m", "launch.cli.main"]
START_S = 120.0
"""Patience for a process to be there."""
KINDS = ("followed", "hourly", "true", "true hourly")


@contextmanager
def started(log: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of pslib while the block does; its lines go to a file."""
    with log.open("wb") as lines:
        process = subprocess.Popen([*PSLIB, *map(str, words)], stdout=lines, stderr=lines)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until a file has a line; return its first group."""
    until_s = time.monotonic() + START_S
    while not (found := re.search(pattern, log.read_text())):
        if process.poll() is not None or time.monotonic() > until_s:
            sys.exit(f"{log}: expected a line with {pattern}, got:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
    return found[1]


def write(folder: Path, number: int) -> None:
    """Let the clicks of a file arrive: under another name first, since the training takes whole files."""
    pq.write_table(clicks(number), folder / f".{number:06d}.parquet")
    os.rename(folder / f".{number:06d}.parquet", folder / f"{number:06d}.parquet")


def auc(scores: NDArray[np.floating], labels: NDArray[np.int8]) -> float:
    """Return the area under the ROC curve."""
    return ScoreCounts.of(scores.astype(np.float32), labels).result().auc


def play(out: Path, hours: int, pace_s: float) -> list[dict[str, float]]:
    """Play all hours; return a line for each after the first one: the AUC of each kind of `KINDS`."""
    incoming, run = out / "incoming", out / "run"
    incoming.mkdir(parents=True)
    found: list[tuple[NDArray[np.floating], ...]] = []
    with ExitStack() as stack:
        command = ["launch", "--servers", "1", "--trainers", "1", "--out", run]
        script = Path(__file__).with_name("train.py")
        training = stack.enter_context(started(out / "train.log", *command, script, incoming, run))
        for number in range(FILES_AN_HOUR):
            write(incoming, number)
        until_s = time.monotonic() + START_S
        while not list(run.glob("checkpoint/*/manifest.json")):
            if training.poll() is not None or time.monotonic() > until_s:
                sys.exit(f"expected a checkpoint, see {out / 'train.log'}")
            time.sleep(0.1)
        clients = []
        for name, more in (("followed", ["--follow"]), ("hourly", ["--refresh-s", "0.2"])):
            log = out / f"{name}.log"
            options = ["--port", "0", "--zmq", "tcp://127.0.0.1:0", *more]
            server = stack.enter_context(started(log, "serve", f"news={run}", *options))
            address = wait_for(r"serving at (tcp://\S+)", log, server)
            clients.append(stack.enter_context(ScoringClient(address)))
        for number in range(FILES_AN_HOUR, hours * FILES_AN_HOUR):
            began_s, table = time.monotonic(), clicks(number)
            inputs = {name: table[name].to_numpy() for name in ("segment", "article")}
            served = [client.predict("news", inputs, timeout_s=30.0) for client in clients]
            hour = number / FILES_AN_HOUR
            true = [probability(**inputs, hour=at) for at in (hour, number // FILES_AN_HOUR)]
            found.append((*served, *true, table["click"].to_numpy()))
            write(incoming, number)
            time.sleep(max(0.0, began_s + pace_s - time.monotonic()))
        (incoming / "_STOP").touch()
        if training.wait(START_S) != 0:
            sys.exit(f"expected the training to end well, see {out / 'train.log'}")
    lines = []
    for first in range(0, len(found), FILES_AN_HOUR):
        *scores, labels = (
            np.concatenate(one) for one in zip(*found[first : first + FILES_AN_HOUR], strict=True)
        )
        line = dict(zip(KINDS, (auc(one, labels) for one in scores), strict=True))
        lines.append({"hour": 2 + first // FILES_AN_HOUR} | line)
    return lines


def draw(lines: list[dict[str, float]], place: Path) -> None:
    """Draw the AUC of each kind by hours."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, style in zip(KINDS, ("-o", "-o", "--", ":"), strict=True):
        axes.plot([line["hour"] for line in lines], [line[name] for line in lines], style, label=name)
    axes.set(xlabel="hour", ylabel="AUC of clicks before they are trained on")
    axes.legend()
    plt.savefig(place, dpi=100)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=int, default=6, help="the first one is trained on alone")
    parser.add_argument("--pace-s", type=float, default=0.5, help="from one file to the next")
    parser.add_argument("--out", type=Path, default=Path("runs/news"), help="a folder that is not there yet")
    options = parser.parse_args()
    if options.hours < 2:
        sys.exit(f"--hours: expected at least 2, got {options.hours}")
    if options.out.exists():
        sys.exit(f"{options.out}: expected a folder that is not there yet; give another by --out")
    lines = play(options.out.resolve(), options.hours, options.pace_s)
    print("hour  " + "  ".join(KINDS))
    for line in lines:
        print(f"{line['hour']:4}  " + "  ".join(f"{line[name]:{len(name)}.4f}" for name in KINDS))
    mean = {name: float(np.mean([line[name] for line in lines])) for name in KINDS}
    print(
        f"ahead by {mean['followed'] - mean['hourly']:.4f}; planted {mean['true'] - mean['true hourly']:.4f}"
    )
    (options.out / "auc.json").write_text(json.dumps({"hours": lines, "mean": mean}, indent=1))
    draw(lines, options.out / "auc.png")


if __name__ == "__main__":
    main()
