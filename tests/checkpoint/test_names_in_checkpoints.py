"""Names that users give, where a checkpoint has files and columns of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pslib.checkpoint.rows import table_schema
from pslib.checkpoint.verification import verify_checkpoint
from pslib.errors import ConfigurationError
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD, Adagrad, Optimizer
from pslib.table.policies import ByAge, Score
from pslib.table.tables import NAME_BYTES_MAX, DenseSpec, PartSpec, TableSpec
from tests.support.checkpoints import save_tables
from tests.support.clients import client_of

LONGEST = "x" * NAME_BYTES_MAX
KEYS = np.arange(10, dtype=np.uint64)


def parts(*names: str, optimizer: Optimizer | None = None) -> tuple[PartSpec, ...]:
    return tuple(PartSpec(name, 2, optimizer or Adagrad(), Constant(0.0)) for name in names)


@pytest.mark.parametrize("name", ["dense", "counts", "gone", LONGEST, "ж" * (NAME_BYTES_MAX // 2)])
def test_a_table_of_any_name_is_saved_beside_dense_parameters(tmp_path: Path, name: str) -> None:
    """Both had one file where the table is called dense: the save went well, and nothing could load it."""
    spec, dense = TableSpec(name, parts("v", optimizer=SGD(1.0))), DenseSpec(6, SGD(1.0))
    with client_of() as (client, _running):
        client.setup([spec], dense, np.arange(6, dtype=np.float32))
        client.push({name: (KEYS, np.ones((10, 2), np.float32))}, np.ones(6, np.float32)).wait()
        plain = {"length": 6, "optimizer": SGD(1.0).to_dict()}
        save_tables(client, tmp_path, spec, servers=2, dense=plain)
        client.push({name: (KEYS, np.ones((10, 2), np.float32))}, np.ones(6, np.float32)).wait()
        assert client.load(str(tmp_path)) == 10
        found = client.pull({name: KEYS}, True).wait()
    assert verify_checkpoint(str(tmp_path)).ok
    assert (found.rows[name] == -1).all()
    assert found.dense.tolist() == [-1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["x" + LONGEST, "ж" * (NAME_BYTES_MAX // 2 + 1)])
def test_a_name_that_makes_no_name_of_a_file_is_refused_before_anything_is_trained(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"name: expected at most 200 bytes, got 20[12]: '"):
        TableSpec(name, parts("v"))


def test_parts_that_would_share_a_column_of_a_checkpoint_are_refused() -> None:
    """The state of ``v`` was saved as the weights of ``v_state``, and came back as that."""
    for names in (("key",), ("v", "v_state"), ("v_state", "v")):
        with pytest.raises(ConfigurationError, match="a part is named as a column of checkpoints is, '"):
            TableSpec("t", parts(*names))
    plain = TableSpec("t", parts("v", "v_state", "v_scale", "last_seen", "shows", optimizer=SGD()))
    counts: tuple[dict[str, object], ...] = (
        {"storage": "int8"},
        {"eviction": (ByAge(5),)},
        {"score": Score()},
    )
    for more in counts:
        with pytest.raises(ConfigurationError, match="a part is named as a column"):
            replace(plain, **more)


def test_whatever_is_not_refused_has_columns_of_its_own() -> None:
    names = ("key", "last_seen", "shows", "v", "v_state", "v_scale")
    allowed = 0
    for first, second, storage, optimizer in product(names, names, ("float32", "int8"), (SGD(), Adagrad())):
        for eviction, score in product(((), (ByAge(5),)), (None, Score())):
            try:
                made = parts(first, second, optimizer=optimizer)
                spec = TableSpec("t", made, storage=storage, eviction=eviction, score=score)
            except ConfigurationError:
                continue
            columns = table_schema(spec).names
            assert len(set(columns)) == len(columns)
            allowed += 1
    assert allowed > 100
