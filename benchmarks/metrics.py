"""Cost of metrics: training that is scraped each second, in turns with training that is not; scrape times.

``python benchmarks/metrics.py [--turns 3] [--rows 400000] [--before FOLDER]``

The job is that of ``pslib demo`` (2 servers, 2 trainers). A turn trains it once without metrics and once with
``metrics.port=0``, where this process asks each process for ``/metrics`` once a second, one after the other.
The ratio is that of examples/s and of CPU time of all processes. ``--before`` is a checkout of another commit
with its kernels built, which a turn trains too, without metrics: the ratio to it is what counting costs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from pslib.data.synthetic.generator import GeneratorConfig, generate

HERE = Path(__file__).resolve().parents[1]
EVERY_S = 1.0


def cpu_s() -> float:
    """CPU time of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def scrape_all(targets: Path, over: threading.Event, took_s: list[float]) -> None:
    """Ask each process once a second, until the run is over."""
    while not over.wait(EVERY_S):
        told = json.loads(targets.read_text()) if targets.exists() else []
        for address in (one["targets"][0] for one in told):
            began_s = time.perf_counter()
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                    answer.read()
            except OSError:
                continue  # it has left
            took_s.append(time.perf_counter() - began_s)


def train(job: Path, out: Path, checkout: Path, metrics: bool, took_s: list[float]) -> tuple[float, float]:
    """Train once; return examples/s and CPU seconds."""
    before_s = cpu_s()
    more = ["--set", "metrics.port=0"] if metrics else []
    command = [
        sys.executable,
        "-m",
        "launch.cli.main",
        "train",
        str(job),
        "--out",
        str(out),
        "--overwrite",
        "--quiet",
    ]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    (out / "metrics_targets.json").unlink(missing_ok=True)
    over = threading.Event()
    scraper = threading.Thread(target=scrape_all, args=(out / "metrics_targets.json", over, took_s))
    if metrics:
        scraper.start()
    try:
        subprocess.run([*command, *more], cwd=job.parent, env=environment, check=True, capture_output=True)
    finally:
        over.set()
        if metrics:
            scraper.join()
    summary = json.loads((out / "summary.json").read_text())
    return summary["examples_per_s"], cpu_s() - before_s


def ratio(of: list[tuple[float, float]], to: list[tuple[float, float]]) -> str:
    """Median of the turns' ratios, for people."""
    rates = [one[0] / other[0] for one, other in zip(of, to, strict=True)]
    cpus = [one[1] / other[1] for one, other in zip(of, to, strict=True)]
    rate = f"{statistics.median(rates):.3f} ({min(rates):.3f} to {max(rates):.3f})"
    return f"examples/s {rate}, CPU time {statistics.median(cpus):.3f}"


def main() -> None:
    """Run the turns and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pslib-metrics-") as folder:
        job, took_s = Path(folder) / "job.yaml", list[float]()
        generate(Path(folder) / "data", GeneratorConfig(train_rows=options.rows))
        job.write_text(write_yaml(demo_job("data", "run")))
        found: dict[str, list[tuple[float, float]]] = {"before": [], "without": [], "with": []}
        for turn in range(options.turns):
            names = [name for name in found if name != "before" or options.before]
            for name in names if turn % 2 == 0 else reversed(names):
                checkout = options.before if name == "before" else HERE
                one = train(job, Path(folder) / name, checkout, name == "with", took_s)
                found[name].append(one)
                print(
                    f"turn {turn}: {name:<8} {one[0]:>9,.0f} examples/s, {one[1]:6.1f} s of CPU", flush=True
                )
        print(f"scraped to not: {ratio(found['with'], found['without'])}")
        if options.before:
            print(f"counters to before: {ratio(found['without'], found['before'])}")
        took_s.sort()
        at = {share: took_s[int(share * (len(took_s) - 1))] * 1e3 for share in (0.5, 0.9, 0.99, 1.0)}
        told = ", ".join(f"p{share * 100:g} {ms:.1f} ms" for share, ms in at.items())
        print(f"{len(took_s)} scrapes: {told}")


if __name__ == "__main__":
    main()
