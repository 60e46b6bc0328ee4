"""Run a notebook as Jupyter does, press its stop button during one cell, and print what a person would see.

    python run_notebook.py CELLS METRICS COMPLETED...

CELLS is Python in cells (``# %% title``). The cell called ``interrupted`` is interrupted as soon as METRICS
has a record. The output is JSON: of each cell the types, texts and HTML of its outputs and the line of its
error; and the completions of each of COMPLETED after the last cell but one.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager
from nbclient import NotebookClient
from nbformat import v4

LIMIT_S = 120


def cells_of(text: str) -> dict[str, str]:
    """Sources of the cells by their titles."""
    parts = re.split(r"^# %% (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def interrupt_when_written(kernel: KernelManager, metrics: Path) -> None:
    """Press the stop button of the notebook when a training has written its first record."""
    end = time.monotonic() + LIMIT_S
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < end, f"no record in {metrics}"
        time.sleep(0.02)
    kernel.interrupt_kernel()


def seen(outputs: list[Any]) -> dict[str, Any]:
    """Outputs below a cell: texts, HTML, streams and errors."""
    data = [one["data"] for one in outputs if "data" in one]
    errors = [one for one in outputs if one["output_type"] == "error"]
    return {
        "types": sorted({kind for one in data for kind in one}),
        "text": "".join(one.get("text/plain", "") for one in data),
        "html": "".join(one.get("text/html", "") for one in data),
        "streams": "".join(one["text"] for one in outputs if one["output_type"] == "stream"),
        "error": [f"{one['ename']}: {one['evalue']}" for one in errors],
    }


def completions(kernel: KernelManager, text: str) -> list[str]:
    """Completions that a kernel offers after a text, without that text."""
    client = BlockingKernelClient(connection_file=kernel.connection_file)
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT_S)
    found: list[str] = client.complete(text, reply=True, timeout=LIMIT_S)["content"]["matches"]
    client.stop_channels()
    return [one.removeprefix(text) for one in found]


def main(cells: Path, metrics: Path, *completed: str) -> None:
    sources = cells_of(cells.read_text(encoding="utf-8"))
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources.values()])
    kernel = KernelManager(kernel_name="python3")
    client = NotebookClient(notebook, km=kernel, timeout=LIMIT_S, allow_errors=True)
    told: dict[str, Any] = {}
    with client.setup_kernel():
        for number, title in enumerate(sources):
            if number == len(sources) - 1:
                told["completions"] = {text: completions(kernel, text) for text in completed}
            if title == "interrupted":
                threading.Thread(target=interrupt_when_written, args=(kernel, metrics), daemon=True).start()
            told[title] = seen(client.execute_cell(notebook.cells[number], number)["outputs"])
    print(json.dumps(told, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
