"""Samples over time: bounded memory, and what stands for merged ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.monitor.run_state import run_state
from pslib.monitor.samples import COLUMNS, ROWS_MAX, Samples
from tests.support.statuses import server, status


def state_at(number: int, **run: Any) -> dict[str, Any]:
    plain = run_state(
        status([server(0, rows=number), server(1, rows=1)], float(number), examples=10 * number)
    )
    plain["run"] |= {"loss": 0.5, **run}
    return plain


def filled(count: int) -> Samples:
    samples = Samples()
    for number in range(1, count + 1):
        samples.add(state_at(number))
    return samples


def column(samples: Samples, name: str) -> list[Any]:
    place = list(COLUMNS).index(name)
    return [row[place] for row in samples.plain()["rows"]]


def test_an_hour_of_seconds_takes_no_more_memory_than_a_minute() -> None:
    minute, hour = filled(60), filled(3600)
    assert len(hour) <= ROWS_MAX
    assert hour.nbytes == minute.nbytes
    seconds = column(hour, "seconds")
    assert seconds[-1] == 3600.0
    steps = {later - earlier for earlier, later in pairwise(seconds[:-1])}
    assert steps == {8.0}  # equal distances, but for the row that is not full


def test_a_sample_has_the_figures_of_its_state() -> None:
    samples = filled(3)
    assert column(samples, "seconds") == [1.0, 2.0, 3.0]
    assert column(samples, "examples") == [10, 20, 30]
    assert column(samples, "rows") == [2, 3, 4]  # of both servers
    assert column(samples, "auc") == [None, None, None]


STILL = state_at(1)


@given(st.integers(ROWS_MAX + 1, 4 * ROWS_MAX))
def test_merged_rows_keep_means_of_rates_and_the_last_of_counts(count: int) -> None:
    samples = Samples()
    for number in range(1, count + 1):
        samples.add({**STILL, "run": STILL["run"] | {"seconds": float(number), "auc": number / count}})
    each = column(samples, "seconds")[0]
    assert column(samples, "auc")[0] == pytest.approx((1 + each) / 2 / count)
    assert column(samples, "seconds")[-1] == float(count)
    assert set(column(samples, "loss")) == {0.5}


def test_where_one_of_two_neighbours_is_unknown_the_other_stands() -> None:
    samples = Samples()
    for number in range(1, ROWS_MAX + 2):
        samples.add(state_at(number, auc=0.75 if number % 2 else None))
    assert set(column(samples, "auc")) == {0.75}


@pytest.mark.parametrize("value", [10**400, 1e999, "5", None, True, []])
def test_a_figure_of_a_file_that_is_no_number_is_unknown(value: object) -> None:
    samples = Samples.of({"columns": ["auc", "seconds"], "rows": [[value, 1.0]]})
    assert (column(samples, "auc"), column(samples, "seconds")) == ([None], [1.0])


def test_samples_of_a_file_are_the_same_again() -> None:
    plain = filled(ROWS_MAX + 7).plain()
    assert Samples.of(plain).plain()["rows"] == plain["rows"]
    broken = {"columns": ["seconds", "new"], "rows": [[1.0, 5], None, [2.0]]}
    assert [row[0] for row in Samples.of(broken).plain()["rows"]] == [1.0, None, 2.0]
    assert len(Samples.of({})) == 0
