"""Shows and clicks travel with a push only where a policy of the table counts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pslib.table.policies import ByBloom, ByCount, Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Push
from tests.support.clients import client_with

PLAIN = TableSpec("plain", (PartSpec("w", 1), PartSpec("v", 2)))
COUNTS = [
    {"score": Score()},
    {"admission": ByCount(2)},
    {"admission": ByBloom(2)},
    {"compact": Compact("v", shows=2)},
]
ONCE = np.array([3, 4], np.uint64)
TWICE = np.array([3, 4, 3], np.uint64)


def sent(
    monkeypatch: pytest.MonkeyPatch, spec: TableSpec, keys: np.ndarray, told: bool
) -> list[dict[str, object]]:
    """Shows and clicks of the pushes that a client hands to its wire."""
    with client_with(PLAIN, spec) as client:
        pushes: list[Push] = []
        start = client.session.requests.start

        def watched(now_s, address, message, *waits, **named):
            if isinstance(message, Push):
                pushes.append(message)
            return start(now_s, address, message, *waits, **named)

        monkeypatch.setattr(client.session.requests, "start", watched)
        names = {PLAIN.name, spec.name}
        counts = {name: np.full(keys.size, 5, np.float32) for name in names} if told else None
        rows = np.ones((keys.size, 3), np.float32)
        client.push({name: (keys, rows) for name in names}, shows=counts, clicks=counts).wait()
    return [
        {name: array.tolist() for name, array in counted.items()}
        for push in pushes
        for counted in (push.shows, push.clicks)
    ]


@pytest.mark.parametrize("keys", [ONCE, TWICE], ids=["distinct", "repeated"])
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
def test_a_table_that_does_not_count_is_sent_no_shows_and_clicks(monkeypatch, keys, told):
    assert sent(monkeypatch, replace(PLAIN, name="other"), keys, told) == [{}, {}]


@pytest.mark.parametrize("policies", COUNTS, ids=lambda policies: next(iter(policies)))
def test_a_table_that_counts_is_sent_them_and_the_others_beside_it_are_not(monkeypatch, policies):
    spec = replace(PLAIN, name="counting", **policies)
    assert sent(monkeypatch, spec, ONCE, told=True) == [{"counting": [5, 5]}, {"counting": [5, 5]}]
    assert sent(monkeypatch, spec, ONCE, told=False) == [{}, {}]  # 1 and 0 go without saying
    assert sent(monkeypatch, spec, TWICE, told=False) == [{"counting": [2, 1]}, {"counting": [0, 0]}]
