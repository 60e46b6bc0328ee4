"""Generated click data: the same for the same seed, shaped like Criteo's, with a true best AUC."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.data.synthetic.planted_model import zipf_knots
from pslib.errors import ConfigurationError

SMALL = GeneratorConfig(
    train_rows=70_000,
    test_rows=9_000,
    seed=5,
    vocabularies=(50, 1_000, 30, 200_000),
    dense_fields=3,
    signal=1.5,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def train(small) -> pa.Table:
    return pq.read_table(small.train_path)


def test_columns_are_those_of_criteo_with_nulls_where_values_miss(train):
    assert train.schema.names == ["label", "I1", "I2", "I3", "C1", "C2", "C3", "C4"]
    assert [str(field.type) for field in train.schema] == ["int8"] + ["int64"] * 3 + ["string"] * 4
    shares = {name: train[name].null_count / train.num_rows for name in train.schema.names}
    assert shares["label"] == shares["I2"] == shares["C1"] == 0
    assert shares["I1"] == pytest.approx(0.40, abs=0.01)
    assert shares["C4"] == pytest.approx(0.20, abs=0.01)


def test_rows_and_row_groups_are_as_asked(small):
    assert [pq.ParquetFile(small.train_path).metadata.row_group(i).num_rows for i in (0, 1)] == [
        65_536,
        4_464,
    ]
    assert pq.read_metadata(small.test_path).num_rows == 9_000


def test_small_row_groups_hold_the_same_rows(small, train, tmp_path):
    config = GeneratorConfig(**{**plain(SMALL), "row_group_rows": 5_000})
    other = generate(tmp_path, config)
    assert pq.read_metadata(other.train_path).num_row_groups == 14 + 1
    assert pq.read_table(other.train_path).equals(train)


def plain(config: GeneratorConfig) -> dict:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(small, train, tmp_path):
    again = pq.read_table(generate(tmp_path / "again", SMALL).train_path)
    other = pq.read_table(
        generate(tmp_path / "other", GeneratorConfig(**{**plain(SMALL), "seed": 6})).train_path
    )
    assert again.equals(train)
    assert not any(other[name].equals(train[name]) for name in train.schema.names)


def test_a_golden_row_so_that_a_change_of_the_data_is_a_decision(train):
    assert list(train.slice(3, 1).to_pylist()[0].values()) == [
        1,
        None,
        202,
        10,
        "00000000",
        "bc23442b",
        "0e65af6b",
        "361d801d",
    ]


def test_train_and_test_share_no_stretch_of_rows(small, train):
    test = pq.read_table(small.test_path)
    assert not test["C4"].slice(0, 1_000).equals(train["C4"].slice(0, 1_000))


def test_frequencies_follow_zipf(tmp_path):
    config = GeneratorConfig(
        train_rows=200_000, test_rows=1, vocabularies=(1_000,), dense_fields=0, sparse_type="integer"
    )
    ranks = pq.read_table(generate(tmp_path, config).train_path)["C1"].to_numpy()
    expected = np.arange(1, 1_001) ** -1.05
    expected *= ranks.size / expected.sum()
    seen = np.bincount(ranks, minlength=1_000)
    assert seen.size == 1_000
    # Chi-square over the 1,000 values: 999 expected, deviation 45, plus what 16-bit quantiles leave.
    assert ((seen - expected) ** 2 / expected).sum() < 999 + 6 * 45


def test_a_huge_vocabulary_reaches_its_last_values_and_stays_inside(tmp_path):
    size = 1 << 31
    config = GeneratorConfig(
        train_rows=60_000, test_rows=1, vocabularies=(size,), dense_fields=0, sparse_type="integer"
    )
    ranks = pq.read_table(generate(tmp_path, config).train_path)["C1"].to_numpy()
    assert ranks.min() == 0
    assert size * 0.9 < ranks.max() < size


def test_the_tail_by_integrals_agrees_with_the_sum():
    ranks, cumulative = zipf_knots(100_000, 1.05)
    exact = np.cumsum(np.arange(1.0, 100_001) ** -1.05)
    exact /= exact[-1]
    inside = np.floor(ranks[1:]).astype(int)
    assert np.abs(cumulative[1:] - exact[inside - 1]).max() < 2e-5
    assert cumulative[-1] == 1


def test_strings_of_different_ranks_differ(tmp_path):
    config = {"train_rows": 50_000, "test_rows": 1, "vocabularies": (1 << 20,), "dense_fields": 0}
    text = pq.read_table(generate(tmp_path / "s", GeneratorConfig(**config)).train_path)["C1"]
    ranks = pq.read_table(
        generate(tmp_path / "i", GeneratorConfig(**config, sparse_type="integer")).train_path
    )["C1"]
    pairs = set(zip(text.to_pylist(), ranks.to_pylist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 10_000
    assert all(len(name) == 8 and set(name) <= set("0123456789abcdef") for name, _ in pairs)


def test_the_stated_best_auc_is_that_of_the_true_probabilities(small):
    block = SMALL.model().block(1, 0, 9_000)
    labels = pq.read_table(small.test_path)["label"].to_numpy()
    assert np.array_equal(labels, block.labels)
    assert small.test.best_auc == pytest.approx(roc_auc_score(labels, block.probabilities), abs=1e-5)
    # Labels are drawn from these probabilities: calibrated within five standard errors in each tenth.
    order = np.argsort(block.probabilities)
    for tenth in np.array_split(order, 10):
        p = block.probabilities[tenth]
        assert abs(labels[tenth].mean() - p.mean()) < 5 * np.sqrt((p * (1 - p)).mean() / tenth.size)


def test_the_share_of_positives_and_the_signal_are_as_asked(tmp_path):
    noise = generate(
        tmp_path, GeneratorConfig(train_rows=20_000, test_rows=20_000, signal=0, positive_share=0.1)
    ).test
    assert noise.positives / noise.rows == pytest.approx(0.1, abs=0.01)
    assert noise.best_auc == 0.5


def test_a_linear_model_on_the_keys_beats_chance_by_far_and_not_the_truth(small, train):
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    def keyed(table):
        rows = table.select(["C1", "C2", "C3", "C4"]).to_pylist()
        return FeatureHasher(2**18, input_type="string").transform(
            [f"{k}={v}" for k, v in row.items()] for row in rows
        )

    test = pq.read_table(small.test_path)
    model = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=5, tol=None, random_state=0)
    model.fit(keyed(train.slice(0, 30_000)), train["label"].to_numpy()[:30_000])
    auc = roc_auc_score(test["label"].to_numpy(), model.decision_function(keyed(test)))
    assert 0.65 < auc < small.test.best_auc


def test_the_sidecar_and_the_parquet_metadata_say_how_the_data_came_to_be(small):
    sidecar = json.loads((small.folder / "generated.json").read_text())
    inside = json.loads(pq.read_metadata(small.test_path).metadata[b"pslib.generated"])
    assert sidecar["test"]["best_auc"] == inside["part"]["best_auc"] == small.test.best_auc
    assert sidecar["config"]["vocabularies"] == inside["config"]["vocabularies"] == [50, 1_000, 30, 200_000]
    assert sidecar["train"]["rows"] == 70_000
    assert len(small.lines()) == 2


def test_the_schema_names_every_column(train):
    assert set(generated_schema(SMALL).columns) == set(train.schema.names)


def test_existing_files_are_kept_unless_overwriting_is_asked_for(tmp_path):
    tiny = GeneratorConfig(train_rows=10, test_rows=10)
    generate(tmp_path, tiny)
    before = (tmp_path / "train.parquet").read_bytes()
    with pytest.raises(ConfigurationError, match="exists already") as caught:
        generate(tmp_path, tiny)
    assert len(caught.value.problems) == 3
    generate(tmp_path, GeneratorConfig(train_rows=20, test_rows=10), overwrite=True)
    assert (tmp_path / "train.parquet").read_bytes() != before


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def stop(done, total):
        assert (done, total) == (10, 20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "new", GeneratorConfig(train_rows=10, test_rows=10), progress=stop)
    assert list((tmp_path / "new").iterdir()) == []


def spread_of_logits(fade: float, first: int, last: int) -> float:
    """Deviation of the true logit over rows whose one value has a rank in ``first``..``last - 1``."""
    config = GeneratorConfig(vocabularies=(4_096,), dense_fields=0, signal=1.0, zipf=0.5, fade=fade)
    block = config.model().block(0, 0, 65_536)
    (ranks,) = block.ranks
    some = (ranks >= first) & (ranks < last)
    return float(np.log(block.probabilities[some] / (1 - block.probabilities[some])).std())


def test_rare_values_say_as_much_as_others_unless_the_signal_fades():
    frequent, rare = (15, 31), (1_023, 2_047)
    assert spread_of_logits(0.0, *rare) == pytest.approx(spread_of_logits(0.0, *frequent), rel=0.5)
    # Six doublings of the rank, a fade of 1/2: an eighth.
    ratio = spread_of_logits(0.5, *rare) / spread_of_logits(0.5, *frequent)
    unfaded = spread_of_logits(0.0, *rare) / spread_of_logits(0.0, *frequent)
    assert ratio / unfaded == pytest.approx(1 / 8, rel=1e-4)


def test_all_values_out_of_bounds_are_named_at_once():
    with pytest.raises(ConfigurationError) as caught:
        GeneratorConfig(train_rows=0, zipf=-1, vocabularies=(0,), sparse_type="float", row_group_rows=100_000)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "train_rows",
        "zipf",
        "sparse_type",
        "row_group_rows",
        "vocabularies",
    ]
