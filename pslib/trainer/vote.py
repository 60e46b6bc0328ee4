"""Votes: trainers agree, at the end of an epoch, on whether a fit stops."""

from __future__ import annotations

import numpy as np

from pslib.client.client import Client
from pslib.table.tables import text_hash
from pslib.trainer.call_log import Calls
from pslib.trainer.collective import JobSpec
from pslib.trainer.progress import Progress
from pslib.wire.fields import json_array

NO_WINDOWS = np.zeros(0, np.uint32)


def voted(calls: Calls, client: Client, progress: Progress, stop: str) -> str:
    """Vote with all other trainers; return what one of them stops for, or nothing.

    The call is over when every trainer that was there when it began has voted, or is lost.
    """
    job = calls.open(client, progress, JobSpec("vote", text_hash("vote"), {}, NO_WINDOWS))
    for lease in job.leases():
        job.end(lease, {"words": json_array({"stop": stop} if stop else {})}).wait()
    return str(job.outcome().get("stop", ""))
