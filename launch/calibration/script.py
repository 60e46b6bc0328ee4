"""Measurement script of `pslib bench calibrate`: ``script.py PART OUT ARGUMENTS``.

It runs in the process of a trainer of a real cluster, so that threads, allocator and processor are those of
training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil

from cython_ext.model.products import has_bfloat16
from launch.calibration.rows import measure_rows
from launch.calibration.steps import measure_reading, measure_steps
from launch.calibration.wire import (
    few_keys,
    loopback_mb_s,
    measure_checkpoint,
    measure_wire,
    server_cpu,
    set_up,
)
from pslib.cluster import connect
from pslib.schema import Schema

__all__ = ["measure_all", "measure_threads"]


def measure_all(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure everything except whole runs."""
    folder, seconds = Path(settings["folder"]), settings["seconds"]
    schema = Schema.from_dict(settings["schema"])
    costs, found = measure_rows(settings["table_rows"])
    with connect() as cluster:
        client = cluster.client
        _, private_bytes = server_cpu()
        found["server_process_bytes"] = float(private_bytes())
        found["trainer_process_bytes"] = float(psutil.Process().memory_full_info().uss)
        set_up(client, settings["wire_rows"])
        found |= measure_wire(client, settings["wire_rows"], costs, seconds)
        found["checkpoint_mb_s"] = measure_checkpoint(client, str(folder / "checkpoint"))
        found["few_keys_server_us"] = few_keys(client, 2 * seconds).other_s * 1e6
        found["loopback_mb_s"] = loopback_mb_s()
        found |= measure_reading(folder, schema, settings["batch_rows"])
        found |= measure_steps(schema, 2 * seconds, settings["products"])
    rounds = settings["products"] == "bfloat16" and has_bfloat16()
    return found | {
        "products": "bfloat16" if rounds else "float32",
        "tables": [
            {name: getattr(cost, name) for name in ("storage", "floats", "pull_us", "push_us", "insert_us")}
            for cost in costs
        ],
    }


def measure_threads(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure a small request to a server with more threads."""
    with connect() as cluster:
        set_up(cluster.client, 1_000)
        return {"few_keys_server_us": few_keys(cluster.client, 2 * settings["seconds"]).other_s * 1e6}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    measured = (measure_all if given["part"] == "all" else measure_threads)(given)
    Path(given["out"]).write_text(json.dumps(measured), encoding="utf-8")
