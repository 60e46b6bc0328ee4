"""Estimates from a sample of keys: the number of a column's values, and of those that occur once."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launch.cli.main import main
from pslib.data.inspect.column_scan import KEYS_MAX, KeySample
from pslib.data.inspect.describe import _is_rare, describe


def test_distinct_values_are_counted_within_two_percent_of_the_truth(tmp_path):
    choice = np.random.default_rng(2)
    many, label = choice.integers(0, 150_000, 200_000), choice.integers(0, 2, 200_000)
    pq.write_table(pa.table({"label": label, "x": many, "few": many % 100}), tmp_path / "data.parquet")
    found = {column.name: column.distinct for column in describe(tmp_path / "data.parquet").report.columns}
    assert found["x"] == pytest.approx(np.unique(many).size, rel=0.02)
    assert found["few"] == 100


def test_values_that_occur_once_are_told_with_the_cut_off_that_keeps_them_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = 60_000
    often, once = rng.integers(0, 6_000, rows // 2), 10**6 + np.arange(rows // 2)
    rows_of = {
        "click": np.tile([0, 1], rows // 2),
        "ad": rng.permutation([*often, *once]),
        "city": often.repeat(2),
    }
    pq.write_table(pa.table(rows_of), tmp_path / "a.parquet")
    assert main(["describe", str(tmp_path / "a.parquet")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ByCount" in line]
    assert "values of ad occur once" in line
    told, values = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d{4,}|\d+,\d+", line)[:2])
    exact = np.unique(rows_of["ad"], return_counts=True)[1]
    assert told == pytest.approx((exact == 1).sum(), rel=0.03)
    assert values == pytest.approx(exact.size, rel=0.02)
    setting = {"admission": {"name": "ByCount", "count": 2}}
    assert yaml.safe_load(re.search(r"table: (\{.*\}\})", line)[1]) == setting
    pq.write_table(pa.table({name: rows_of[name] for name in ("click", "city")}), tmp_path / "b.parquet")
    assert describe(tmp_path / "b.parquet").cut_off() is None


@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=8), st.integers(1, 4))
def test_a_sample_that_holds_all_keys_counts_as_python_does(parts, count):
    sample, counter = KeySample(), Counter()
    for part in parts:
        keys, counts = np.unique(np.array(part, np.uint64), return_counts=True)
        sample.add(keys, counts)
        counter.update(part)
    expected = np.mean([times < count for times in counter.values()]) if counter else 0
    assert sample.share_below(count) == expected


def test_a_sample_of_many_keys_gives_each_the_same_chance():
    sample, rng = KeySample(), np.random.default_rng(3)
    for _ in range(4):  # a quarter of the keys comes once, the others four times
        keys = np.arange(75_000, dtype=np.uint64)
        sample.add(keys, np.ones(keys.size, np.int64))
        assert KEYS_MAX / 3 < sample._keys.size <= KEYS_MAX
    once = rng.permutation(np.arange(75_000, 100_000, dtype=np.uint64))
    for part in np.split(once, 5):
        sample.add(part, np.ones(part.size, np.int64))
    assert sample.share_below(2) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("distinct", "once", "rare"),
    [(10_000, 0.25, True), (9_999, 1.0, False), (10_000, 0.24, False), (None, None, False)],
)
def test_a_cut_off_is_proposed_where_many_values_are_seen_once(distinct, once, rare):
    assert _is_rare(SimpleNamespace(distinct=distinct, once=once)) == rare
