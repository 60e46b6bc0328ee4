"""Descriptions of tables, optimizers, initializers, schemas and clusters check themselves."""

import numpy as np
import pytest

from pslib.config import ClusterConfig
from pslib.errors import ConfigurationError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.table.initializers import Constant, Normal, Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from pslib.table.tables import DIM_MAX, DenseSpec, PartSpec, TableSpec, text_hash


def test_the_hash_of_a_name_is_the_same_for_ever():
    assert text_hash("0", "embedding", "v") == 0xBD79BA9BA987D988
    assert text_hash("ab") != text_hash("a", "b")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SGD(0.0), "learning_rate"),
        (lambda: SGD(float("nan")), "learning_rate"),
        (lambda: Adagrad(0.1, epsilon=0), "epsilon"),
        (lambda: Adagrad(0.1, initial_accumulator=-1), "initial_accumulator"),
        (lambda: RowwiseAdagrad(0.1, epsilon=-1), "epsilon"),
        (lambda: RowwiseAdagrad(0.1, initial_accumulator=-1), "initial_accumulator"),
        (lambda: Adam(beta1=1.0), "beta1"),
        (lambda: Adam(beta2=0.99999), "beta2"),
        (lambda: Uniform(float("inf")), "bound"),
        (lambda: Normal(-1.0), "std"),
        (lambda: Constant(float("nan")), "value"),
        (lambda: Adagrad(0.1, epsilon=1e-50), "epsilon"),
        (lambda: PartSpec("v", 0), "dim"),
        (lambda: PartSpec("v", DIM_MAX + 1), "dim"),
        (lambda: PartSpec("not a name", 1), "identifier"),
        (lambda: PartSpec("v", 1, optimizer="Adam"), "part v: optimizer"),
        (lambda: PartSpec("v", 1, initializer=0.01), "part v: initializer"),
        (lambda: TableSpec("t", ()), "parts"),
        (lambda: TableSpec("t", (PartSpec("v", 1), PartSpec("v", 2))), "differ"),
        (lambda: TableSpec("a/b", (PartSpec("v", 1),)), "identifier"),
        (lambda: TableSpec.from_dict({"name": "t"}), "parts"),
        (lambda: DenseSpec(10, RowwiseAdagrad()), "RowwiseAdagrad"),
        (lambda: DenseSpec(-1, SGD()), "length"),
        (lambda: Schema(label="y"), "no feature"),
        (lambda: Schema(label="y", sparse=["a", "a"]), "'a' is named twice: sparse, sparse"),
        (lambda: Schema(label="y", sparse=["y"]), "'y' is named twice: label, sparse"),
        (lambda: Schema(label="y", weight="a", dense=["a"]), "'a' is named twice: weight, dense"),
        (
            lambda: RaggedField("g", pooling="max"),
            "ragged field 'g': pooling: expected one of sum, mean, got 'max'",
        ),
        (lambda: ClusterConfig(servers=0), "servers"),
        (lambda: ClusterConfig(servers=2, partition_bits=4), "at least 32 partitions"),
        (lambda: ClusterConfig(partition_bits=21), "partition_bits"),
        (lambda: ClusterConfig.from_dict({"severs": 2}), "severs"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(make, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        make()
    assert all("\n" not in problem for problem in caught.value.problems)


def test_a_schema_and_a_cluster_tell_all_their_problems_at_once():
    with pytest.raises(ConfigurationError) as caught:
        Schema(label="y", sparse=["a", "a", "b", "b"], weight="")
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigurationError) as caught:
        ClusterConfig(servers=0, trainers=0, shard_threads=0)
    assert len(caught.value.problems) == 3


def test_one_column_name_is_not_taken_for_its_letters():
    with pytest.raises(ConfigurationError, match=r"got 'user': write \['user'\]"):
        Schema(label="click", sparse="user")


def test_tables_schemas_and_clusters_survive_their_plain_forms():
    table = TableSpec("t", (PartSpec("w", 1, SGD(), Constant()), PartSpec("v", 4, Adam(), Normal())), seed=7)
    assert TableSpec.from_dict(table.to_dict()) == table
    schema = Schema(
        label="y",
        dense=[DenseField("a", fill=1.0, log1p=True)],
        sparse=[SparseField("b", vocabulary="items")],
        ragged=[RaggedField("c", "sum", "items")],
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    config = ClusterConfig(servers=3, shard_threads=2)
    assert ClusterConfig.from_dict(config.to_dict()) == config


def test_fields_that_share_a_vocabulary_share_keys_and_others_do_not():
    assert SparseField("clicked", "item").salt == RaggedField("history", vocabulary="item").salt
    assert SparseField("clicked").salt != SparseField("item").salt


def test_parts_stand_side_by_side_in_a_row():
    table = TableSpec("t", (PartSpec("w", 1, RowwiseAdagrad()), PartSpec("v", 16, Adam())))
    assert (table.dim, table.state_floats) == (17, 1 + 33)


def test_adams_corrections_end_where_they_round_to_one():
    corrections = Adam(beta1=0.9, beta2=0.99).corrections()
    assert corrections[-1].tolist() == [1.0, 1.0]
    assert corrections[-2].tolist() != [1.0, 1.0]
    assert np.allclose(corrections[1], [10, 100])
    assert np.allclose(corrections[3], [1 / (1 - 0.9**3), 1 / (1 - 0.99**3)], rtol=1e-6)


def test_first_values_of_parts_differ_by_seed_table_and_part():
    tables = [TableSpec(n, (PartSpec("v", 1), PartSpec("w", 1)), s) for n in ("a", "b") for s in (0, 1)]
    seeds = {table.part_seed(part) for table in tables for part in table.parts}
    assert len(seeds) == 8
