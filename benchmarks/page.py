"""Load time of the page of a run in Chromium, and CPU of the process that serves it, for each state.

The run is recorded: 128 servers and 64 trainers. Chromium starts anew for each load, so its cache is empty;
the time is from the beginning of the navigation to the first frame with curves.

    python benchmarks/page.py [--loads 7]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import sync_playwright

from pslib.monitor.app import json_of
from pslib.monitor.page_server import PageServer
from tests.support.recorded_state import RecordedRun

STATES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=7)
    options = parser.parse_args()
    run = RecordedRun(128, 64, 700.0)
    state = run.state()
    began_s = time.process_time()
    for _ in range(STATES):
        text = json_of(state)
    each_s = (time.process_time() - began_s) / STATES
    print(f"a state is {len(text) / 1e3:.0f} kB of JSON, written in {1e3 * each_s:.1f} ms")
    page = PageServer(run)
    loads = []
    with sync_playwright() as started:
        for _ in range(options.loads):
            browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.url)
            tab.wait_for_selector("body[data-ready=yes]")
            loads.append(tab.evaluate("performance.getEntriesByName('shown')[0].startTime") / 1e3)
            browser.close()
    page.close()
    best, mid, worst = min(loads), median(loads), max(loads)
    print(f"{len(loads)} loads: {best:.2f} s at best, {mid:.2f} median, {worst:.2f} at most")


if __name__ == "__main__":
    main()
