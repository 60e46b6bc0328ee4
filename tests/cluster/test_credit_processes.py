"""A server process that is stopped: its client waits with what it has, and goes on when the server does."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest

from pslib.client.calls import PushName
from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.config import ClusterConfig, Timing
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport
from tests.support.processes.by_hand import processes_by_hand
from tests.support.waiting import WAIT_S, wait_until

ROWS, DIM = 50_000, 16
PUSH_BYTES = ROWS * (8 + 4 * DIM)
CREDIT_BYTES = 32 << 20
CALLERS_BYTES = 4 * PUSH_BYTES
"""Arrays of the test itself, and what an allocator keeps."""


@pytest.mark.timeout(240)
def test_a_stopped_server_does_not_fill_the_memory_of_a_client_that_pushes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timing = Timing(silence_s=30.0, report_s=1.0)
    config = ClusterConfig(credit_bytes=CREDIT_BYTES, timing=timing)
    transport = ZmqTransport()
    with processes_by_hand(config, "credit") as started:
        client = Client(transport, started.address, "credit", SystemClock())
        try:
            client.setup([TableSpec("t", (PartSpec("v", DIM),))])
            keys = np.arange(ROWS, dtype=np.uint64)
            client.push({"t": (keys, np.ones((ROWS, DIM), np.float32))}).wait()
            pushed, over = [], threading.Event()

            def push_for_ever() -> None:
                """Push like a caller that never waits for what it has sent."""
                while not over.is_set():
                    gradients = np.full((ROWS, DIM), 0.01, np.float32)  # its own, as a batch's is
                    name = PushName(1 << 63, len(pushed))
                    pushed.append(client.push({"t": (keys, gradients)}, name=name))

            caller = threading.Thread(target=push_for_ever)
            before = psutil.Process().memory_info().rss
            os.kill(started.server.pid, signal.SIGSTOP)
            with caplog.at_level(logging.WARNING, "pslib"):
                caller.start()
                most = 0

                def has_told() -> bool:
                    nonlocal most
                    most = max(most, psutil.Process().memory_info().rss - before)
                    return any("for credit" in record.message for record in caplog.records)

                wait_until(has_told, WAIT_S, "the client to say that it waits for credit", pause_s=0.1)
                for _ in range(30):
                    time.sleep(0.1)
                    has_told()
            stuck = len(pushed)
            over.set()
            os.kill(started.server.pid, signal.SIGCONT)
            caller.join(20)
            for one in pushed:
                one.wait()
            assert client.stats()["pushes_applied"] == len(pushed) + 1
        finally:
            client.close()
            transport.close()
    assert most <= CREDIT_BYTES + CALLERS_BYTES
    assert 3 <= stuck <= 2 * CREDIT_BYTES // PUSH_BYTES
