"""Training with packed messages, and with rows kept in the trainer: what is served, saved and exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cython_ext.common.hashing import hash_ints
from launch.supervisor.run_records import summary_lines, summary_of
from pslib.config import ClusterConfig
from pslib.errors import ConfigurationError
from pslib.table.wire_format import WireFormat
from pslib.trainer.settings import CacheSettings, TrainerSettings
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, CountingModel, write_examples
from tests.support.training import counts_of, examples_counted, trainer_on

SAME = hash_ints(np.array([7], np.int64), SCHEMA.sparse[1].salt, None)


def train(
    path: Path, servers: int = 2, model: Any = None, **settings: Any
) -> tuple[dict[str, Any], list[float]]:
    """Status after training, and what the table and the dense parameters hold."""
    with cluster_of(servers) as running:
        cluster = running.join()
        trainer_on(cluster, model, **settings).fit(path)
        same = cluster.client.pull({"counts": SAME}).wait().rows["counts"].ravel().tolist()
        counted = [*counts_of(cluster, np.arange(200)).tolist(), *same, examples_counted(cluster)]
        return running.last_status(), counted


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_every_example_counts_once_however_it_travels(tmp_path: Path, kind: str) -> None:
    """Whole numbers of a batch are exact in every type; so is a row of one float in int8."""
    path = write_examples(tmp_path / "a.parquet", 200)
    wire = WireFormat(kind, kind, "float16" if kind == "int8" else kind)
    _status, counted = train(path, wire=wire)
    np.testing.assert_allclose(counted, [1.0] * 200 + [200.0, 200.0], rtol=1e-6)


@pytest.mark.parametrize("settings", [{"staleness": 0}, {"staleness": 2}, {"staleness": 1, "batch_rows": 7}])
def test_a_cache_changes_what_is_pulled_and_not_what_is_pushed(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    path = write_examples(tmp_path / "a.parquet", 200)
    plain, counted = train(path, **settings)
    cached, counted_too = train(path, cache=CacheSettings(8, 100), **settings)
    assert counted == counted_too == [1.0] * 200 + [200.0, 200.0]
    assert plain["cache_lookups"] == plain["cache_hits"] == plain["cache_bytes_saved"] == 0
    batches = plain["pushes_applied"]
    assert cached["cache_lookups"] == 200 + batches
    assert batches / 2 < cached["cache_hits"] < batches
    assert cached["cache_bytes_saved"] == cached["cache_hits"] * (8 + 4)


@pytest.mark.parametrize("age", [3, 0])
def test_a_row_has_own_gradients_in_it_from_the_cache_or_from_the_servers(tmp_path: Path, age: int) -> None:
    """Steps of SGD are mirrored exactly; age 0 keeps nothing."""
    path, seen = write_examples(tmp_path / "a.parquet", 200), []

    def look(batch: Any, rows: Any) -> None:
        seen.append(float(rows[batch.sparse[0, 1], 0]))

    status, _counted = train(path, model=CountingModel(look), staleness=0, cache=CacheSettings(age, 100))
    assert seen == [5.0 * number for number in range(40)]
    assert (status["cache_lookups"] > 0) == (age > 0)


def test_the_summary_says_what_a_cache_has_saved(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)
    status, _counted = train(path, cache=CacheSettings(8, 100))
    summary = summary_of(status, [], ClusterConfig())
    assert summary["cache_hits"] == status["cache_hits"] > 0
    (line,) = [line for line in summary_lines(summary, tmp_path) if line.startswith("cache")]
    assert f"{status['cache_hits'] / status['cache_lookups']:.1%} of rows were not pulled" in line


@pytest.mark.parametrize("consistency", ["sync", "geo"])
def test_a_cache_is_refused_where_a_mode_keeps_rows_in_another_way(consistency: str) -> None:
    with pytest.raises(ConfigurationError, match="cache: expected consistency async or ssp, got "):
        TrainerSettings(consistency=consistency, cache=CacheSettings(8))
