"""The job file: what is accepted, what is refused and in which words."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.job.job import Job, read_job, unfinished_place
from launch.job.paths import expand
from launch.job.yaml12 import read_yaml, write_yaml
from launch.runs.demo import demo_job
from pslib.config import ClusterConfig, ClusterSettings
from pslib.data.file_watch import StreamSettings
from pslib.errors import ConfigurationError
from pslib.schema import DenseField, RaggedField, SparseField
from pslib.settings import settings_of
from pslib.table.optimizers import SGD, Adagrad, Adam, AdamW
from pslib.table.schedules import Cosine
from pslib.table.wire_format import WireFormat
from pslib.trainer.evaluation.early_stopping import EarlyStopping
from pslib.trainer.settings import OF_CONSISTENCY, CacheSettings, TrainingSettings
from tests.table.test_optimizers import ALL, name_of

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

GOOD = """\
data:
  train: train.parquet
  schema: {label: click, dense: [price], sparse: [user, item]}
model: {name: deepfm, dim: 4, hidden: [8]}
out: run
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def read(folder: Path, text: str, *overrides: str, **changes: object) -> Job:
    return read_job(
        write(folder, text), overrides, {key.replace("_", "."): value for key, value in changes.items()}
    )


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read(folder, text, *overrides)
    assert caught.value.exit_code == 64
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


# --- what is accepted ---


def test_a_short_file_gets_the_defaults(tmp_path):
    job = read(tmp_path, GOOD)
    assert (job.cluster.servers, job.cluster.trainers, job.training.staleness) == (1, 1, 2)
    assert job.optimizers.dense == Adam()
    assert job.build_model().table().parts[1].dim == 4


def test_columns_are_names_or_mappings(tmp_path):
    text = """\
data:
  train: a.parquet
  schema:
    label: y
    dense: [a, {name: b, fill: -1, log1p: true}]
    sparse: [c, {name: d, vocabulary: c}]
    ragged: [e, {name: f, pooling: sum, vocabulary: c}]
model: {name: lr}
"""
    schema = read(tmp_path, text).data.schema
    assert schema.dense == (DenseField("a"), DenseField("b", fill=-1.0, log1p=True))
    assert schema.sparse == (SparseField("c"), SparseField("d", vocabulary="c"))
    assert schema.ragged == (RaggedField("e"), RaggedField("f", pooling="sum", vocabulary="c"))


def test_paths_are_relative_to_the_file_and_not_to_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    monkeypatch.setenv("PSLIB_TEST_FOLDER", "/somewhere")
    job = read(
        tmp_path,
        GOOD,
        "data.valid=[/absolute/v.parquet, '${PSLIB_TEST_FOLDER}/w.parquet', 's3://bucket/x']",
    )
    assert job.data.train == [f"{tmp_path}/train.parquet"]
    assert job.data.valid == ["/absolute/v.parquet", "/somewhere/w.parquet", "s3://bucket/x"]
    assert job.out == f"{tmp_path}/run"


@pytest.mark.parametrize("name", ["share$HOME", "a${HOME}b", "$$", "~x", "$", "x$NO_SUCH_VARIABLE"])
def test_names_of_folders_are_expanded_once_and_read_back_as_they_are(tmp_path, name):
    """Workers, resume and compatibility read the effective job file that the launcher has written."""
    folder = tmp_path / name
    folder.mkdir()
    log = f"cluster.log={folder.name.replace('$', '$$')}/log"
    job = read(folder, GOOD, "data.test=[b$$c.parquet]", log, "cluster.durability=log")
    assert job.data.train == [f"{folder}/train.parquet"]
    assert job.data.test == [f"{folder}/b$c.parquet"]
    assert job.cluster.log == f"{folder}/{name}/log"
    (tmp_path / "again.yaml").write_text(job.to_yaml())
    again = read_job(tmp_path / "again.yaml")
    assert (again.data, again.out, again.cluster.log) == (job.data, job.out, job.cluster.log)


def test_items_lie_where_the_file_says_too(tmp_path):
    assert (
        expand({"data": {"items": "items.parquet"}}, tmp_path)["data"]["items"] == f"{tmp_path}/items.parquet"
    )


def test_overrides_are_read_as_if_they_stood_in_the_file(tmp_path):
    job = read(tmp_path, GOOD, "training.epochs=3", "model.hidden=[4, 2]", "optimizers.dense={name: SGD}")
    assert job.training.epochs == 3
    assert (4, 2) in job.build_model().dense_shapes().values()
    assert job.optimizers.dense == SGD()
    assert read(tmp_path, GOOD, cluster_servers=3).cluster.servers == 3


def test_one_optimizer_is_for_all_parts_and_one_a_part_for_that_part(tmp_path):
    rows = "optimizers: {rows: {name: Adagrad, learning_rate: 0.5}}\n"
    parts = read(tmp_path, GOOD + rows).build_model().table().parts
    assert [part.optimizer for part in parts] == [Adagrad(0.5), Adagrad(0.5)]
    rows = "optimizers: {rows: {w: {name: SGD, learning_rate: 1}}}\n"
    default = read(tmp_path, GOOD).build_model().table().parts[1].optimizer
    parts = read(tmp_path, GOOD + rows).build_model().table().parts
    assert [part.optimizer for part in parts] == [SGD(1.0), default]
    rows = 'optimizers: {rows: {"*": {name: SGD, learning_rate: 1}, v: {name: AdamW, weight_decay: 0.1}}}\n'
    parts = read(tmp_path, GOOD + rows).build_model().table().parts
    assert [part.optimizer for part in parts] == [SGD(1.0), AdamW(weight_decay=0.1)]


@pytest.mark.parametrize("optimizer", ALL, ids=name_of)
def test_every_optimizer_stands_in_the_effective_settings_as_it_is(tmp_path, optimizer):
    rows = write_yaml({"optimizers": {"rows": {"v": replace(optimizer, clip_norm=0.5).to_dict()}}})
    job = read(tmp_path, GOOD + rows)
    again = read(tmp_path, job.to_yaml())
    assert again.build_model().table().parts[1].optimizer == replace(optimizer, clip_norm=0.5)


def test_the_effective_settings_read_back_to_the_same_job_from_anywhere(tmp_path):
    job = read(tmp_path, GOOD, "optimizers.rows={name: Adagrad, epsilon: 1e-7}", "training.seed=9")
    other = tmp_path / "elsewhere"
    other.mkdir()
    again = read(other, job.to_yaml())
    assert again.to_yaml() == job.to_yaml()
    assert again.data == job.data
    assert "epsilon: 1.0e-07" in job.to_yaml()


def test_the_seed_of_the_training_is_the_models_unless_it_has_its_own(tmp_path):
    assert read(tmp_path, GOOD, "training.seed=9").build_model().table().seed == 9
    assert read(tmp_path, GOOD, "training.seed=9", "model.seed=3").build_model().table().seed == 3


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_accepted(path, monkeypatch):
    monkeypatch.setenv("PSLIB_TEST_DATA", "/data")
    read_job(path).build_model()


def test_the_demonstration_is_the_example(tmp_path):
    example = read_yaml((EXAMPLES / "demo.yaml").read_text(), "demo.yaml")
    assert demo_job("../runs/demo/data", "../runs/demo") == example


# --- what is refused ---


def test_all_mistakes_are_told_at_once_each_with_its_path(tmp_path):
    text = """\
data:
  train: []
  tset: x.parquet
  schema: {label: 3, dense: [{name: a, fil: 0, log1p: yes}], sparse: u, ragged: [{name: r, pooling: men}]}
model: {name: deepfm, dimm: 3, dim: -1, dropout: 1.5}
optimizers:
  rows: {w: {name: adam}, v: {name: Adagrad, learning_rte: 1e-3}, u: 7}
  dense: {name: RowwiseAdagrad, learning_rate: x}
training: {batch_rows: 0, staleness: -1, epochs: 1.5, sed: 1}
cluster: {servers: 0, shard_threads: 100}
clutser: {}
out: 5
"""
    assert problems(tmp_path, text) == [
        "data.train: expected a list that is not empty, got []",
        "data.schema.label: expected a text, got 3",
        "data.schema.dense.0.log1p: expected true or false, got 'yes'",
        "data.schema.dense.0.fil: unknown key, did you mean 'fill'?",
        "data.schema.sparse: expected a list, got 'u'",
        "data.schema.ragged.0.pooling: expected one of sum, mean, got 'men', did you mean 'mean'?",
        "data.tset: unknown key, did you mean 'test'?",
        "optimizers.rows.w.name: expected one of SGD, Momentum, Adagrad, RowwiseAdagrad, Adam, AdamW, "
        "AdamL2, FTRL, got 'adam', did you mean 'Adam'?",
        "optimizers.rows.v.learning_rte: unknown key, did you mean 'learning_rate'?",
        "optimizers.rows.u: expected a mapping, for example {name: Adagrad, learning_rate: 0.05}, got 7",
        "optimizers.dense.learning_rate: expected a number above 0 and finite in float32, got 'x'",
        "training.batch_rows: expected >= 1, got 0",
        "training.staleness: expected >= 0, got -1",
        "training.epochs: expected a whole number, got 1.5",
        "training.sed: unknown key, did you mean 'seed'?",
        "cluster.servers: expected >= 1, got 0",
        "cluster.shard_threads: expected <= 64, got 100",
        "out: expected a text, got 5",
        "clutser: unknown key, did you mean 'cluster'?",
        "model.dimm: unknown key, did you mean 'dim'?",
        "model.dim: expected a whole number in 1..4096, got -1",
        "model.dropout: expected a number, 0 or more and below 1, got 1.5",
        "optimizers.dense: RowwiseAdagrad mixes elements, and dense blocks are cut anywhere; "
        "use one of SGD, Momentum, Adagrad, Adam, AdamW, AdamL2, FTRL",
    ]


def numbers_of(kind: Any) -> list[str]:
    """Settings of a class that are numbers with two bounds."""
    return [name for name, (_, one) in settings_of(kind).items() if one and one.ge is not None and one.le]


SINGLE = [
    ("training.batch_rows=0", "training.batch_rows: expected >= 1, got 0"),
    ("cluster.servers=none", "cluster.servers: expected a whole number, got 'none'"),
    ("trainning={epochs: 2}", "trainning: unknown key, did you mean 'training'?"),
    ("batch_rows=12", "batch_rows: unknown key, did you mean 'training.batch_rows'?"),
    ("epoch=3", "epoch: unknown key, did you mean 'training.epochs'?"),
    ("training.dim=4", "training.dim: unknown key, did you mean 'model.dim'?"),
    ("training.optimizer=adam", "training.optimizer: unknown key, did you mean 'optimizers'?"),
    ("optimizers.rows=Adagard", "optimizers.rows: expected a mapping, for example {name: Adagrad, lear"),
    ("optimizers.dense={name: Adm}", "optimizers.dense.name: expected one of"),
    ("out=${NO_SUCH_VARIABLE}", "out: the environment variable NO_SUCH_VARIABLE is not set"),
]
TOGETHER = [
    (
        "checkpoint={every_s: 0, incremental: 2}",
        "checkpoint.incremental: expected every_s or every_batches with it",
    ),
    (
        "cluster.log=logs",
        "cluster.log: expected durability log or disk with it",
    ),
    ("data={train: x, valid: y, stream: true, schema: {label: y, sparse: [a]}}", "data.valid: expected none"),
    (
        "table.eviction=[{name: ByScore, score: 1}]",
        "table.score: is missing",
    ),
    ("load={path: x, tables: [nothing]}", "load.tables: expected one of embedding, got 'nothing'"),
]


@pytest.mark.parametrize("alone", SINGLE, ids=lambda pair: pair[0])
def test_mistakes_of_several_settings_are_told_with_those_of_one(tmp_path, alone):
    """Each wrong value is left out, so that a file takes one round of corrections and not two."""
    wrong = [alone, *TOGETHER]
    found = problems(tmp_path, GOOD, *(override for override, _ in wrong))
    missing = [line for _, line in wrong if not any(one.startswith(line) for one in found)]
    expected = [
        "training.maintain_every_batches: expected > 0, as table.eviction acts only then, got 0 (never)"
    ]
    if alone[0].startswith(("trainning", "batch_rows", "epoch=")):  # which may well set it
        expected = []
    assert missing == []
    assert len(found) == len(wrong) + len(expected)
    assert set(expected) <= set(found)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.maintain_every_batches=-1", "table.eviction=[{name: ByAge, age: 5}]"],
        ["training.maintain_every_batchs=9", "table.eviction=[{name: ByAge, age: 5}]"],
        ["checkpoint.every_s=-1", "checkpoint.incremental=2"],
        ["cluster.durability=logs", "cluster.log=logs"],
        ["data.valid=7", "training.stopping={}"],
        ["data.schema.label=7", "data.stream=true"],
        ["model.name=gru", "ranking={at: [3]}"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_what_a_wrong_setting_would_explain_is_no_second_mistake(tmp_path, overrides):
    (line,) = problems(tmp_path, GOOD, *overrides)
    assert line.startswith(overrides[0].partition("=")[0])


@pytest.mark.parametrize(
    ("section", "kind", "name"),
    [
        *(("training", TrainingSettings, name) for name in numbers_of(TrainingSettings)),
        *(("training.cache", CacheSettings, name) for name in numbers_of(CacheSettings)),
        *(("training.wire", WireFormat, name) for name in numbers_of(WireFormat)),
        *(("training.stopping", EarlyStopping, name) for name in numbers_of(EarlyStopping)),
        *(("data.stream", StreamSettings, name) for name in numbers_of(StreamSettings)),
        *(("cluster", ClusterConfig, name) for name in numbers_of(ClusterSettings)),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_file_and_a_script_refuse_the_same_numbers(tmp_path, section, kind, name):
    setting = settings_of(kind)[name][1]
    more = {"partition_bits": 20} if name == "servers" else {}
    more |= {"consistency": OF_CONSISTENCY[name]} if name in OF_CONSISTENCY else {}
    text = (
        GOOD if section != "training.stopping" else GOOD.replace("  train:", "  valid: v.parquet\n  train:")
    )
    for value in (setting.ge, setting.le):
        assert getattr(kind(**more, **{name: value}), name) == value
        read(tmp_path, text, *(f"{section}.{key}={one}" for key, one in {**more, name: value}.items()))
    for value, told in ((setting.ge - 1, f"expected >= {setting.ge}"), (setting.le + 1, "expected <= ")):
        (line,) = problems(tmp_path, text, f"{section}.{name}={value}")
        assert line.startswith(f"{section}.{name}: {told}")
        with pytest.raises(ConfigurationError, match=name):
            kind(**more, **{name: value})


def test_options_of_the_files_model_that_another_one_lacks_are_left_out_and_told(tmp_path, caplog):
    """A first job file names `dim` and `hidden`, and is tried with other models."""
    text = GOOD.replace("dim: 4", "dim: 4, seed: 5")
    assert read(tmp_path, text, "model.name=lr").model.model_extra == {"seed": 5}
    assert [one.message for one in caplog.records] == [
        "pslib: lr has no dim and no hidden: left out of the file's model"
    ]
    assert read(tmp_path, text, "model.name=fm", "model.dim=6").model.model_extra == {"dim": 6, "seed": 5}
    (told,) = problems(tmp_path, text, "model.name=lr", "model.dim=6")
    assert told.startswith("model.dim: unknown key")
    (told,) = problems(tmp_path, text.replace("dim: 4", "dmi: 4, dim: 4"), "model.name=lr")
    assert told.startswith("model.dmi: unknown key"), "a typo is none of its options"


def test_data_in_place_of_a_job_file_is_told_how_to_get_one(tmp_path):
    with pytest.raises(ConfigurationError, match="got data; make one of it: pslib describe"):
        read_job(tmp_path / "clicks.csv")


AMONG_OPTIMIZERS = "unknown key, did you mean optimizers.rows: {{name: {}: ...}}, and optimizers.dense alike?"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model.name=deepfn", "model.name: expected one of lr, fm, nfm, wide_deep, dnn, pnn, deepfm, dcn,"),
        ("model.name=3", "model.name: expected a text, got 3"),
        ("data.schema.dense=[price, price]", "data.schema: column 'price' is named twice"),
        ("data.schema={label: y}", "data.schema: the schema has no feature"),
        ("data.schema.dense=[{name: p, fill: .nan}]", "data.schema.dense.0.fill: expected a finite number"),
        ("data.schema.sparse=[{name: s, of: 3}]", "data.schema.sparse.0.of: expected a text, a list of"),
        ("data.schema.sparse=[{name: s, buckets: [2, 1]}]", "data.schema.sparse.0.buckets: expected ascend"),
        ("data.schema.sparse=[{name: s, take: day, of: [a, b]}]", "data.schema.sparse.0: take, buckets and"),
        ("data.schema.sparse=[{name: s, take: dya}]", "data.schema.sparse.0.take: expected one of hour, "),
        ("data.train=$NO_SUCH_VARIABLE/x", "data.train: the environment variable NO_SUCH_VARIABLE is"),
        ("data.schema.label=''", "data.schema.label: expected a text that is not empty, got ''"),
        ("cluster={servers: 500}", "cluster.partition_bits: 500 servers need at least 8000 partitions"),
        ("training.epochs=true", "training.epochs: expected a whole number, got True"),
        ("training.batch_rows=1e3", "training.batch_rows: expected a whole number, got 1000.0; write 1000"),
        ("model={name: din}", "model.name: din has nothing to attend to: expected a ragged field with the"),
        ("training.seed=-1", "training.seed: expected >= 0, got -1"),
        ("training=3", "training: expected a mapping (key: value lines), got 3"),
        ("optimizers.rows={u: {name: SGD}}", "optimizers.rows.u: unknown key, known here: v, w"),
        ("optimizers.dense={learning_rate: 1}", "optimizers.dense.name: is missing; one of SGD"),
        ("optimizers.dense={name: Adam, beta1: 2}", "optimizers.dense.beta1: expected a number in 0..0.9999"),
        ("optimizers.dense={name: Adam, learning_rate: -1}", "optimizers.dense.learning_rate: expected a"),
        ("optimizers.dense={name: Adam, clip_norm: 1}", "optimizers.dense: Adam with clip_norm takes norms"),
        ("optimizers.rows={name: FTRL, weight_decay: 1}", "optimizers.rows.weight_decay: expected 0, got"),
        ("optimizers.rows={name: FTRL, l1: true}", "optimizers.rows.l1: expected a number, 0 or more"),
        ("optimizers.rows={name: FTRL, bata: 1}", "optimizers.rows.bata: unknown key, did you mean 'beta'?"),
        ("optimizers.rows.v={name: Momentum, nesterov: 1}", "optimizers.rows.v.nesterov: expected True"),
        ("training.lr=0.1", f"training.lr: {AMONG_OPTIMIZERS.format('Adagrad, learning_rate')}"),
        ("model.l1=1", f"model.l1: {AMONG_OPTIMIZERS.format('FTRL, l1')}"),
        ("wd=0.1", f"wd: {AMONG_OPTIMIZERS.format('Adagrad, weight_decay')}"),
        ("optimizers.lr=0.1", f"optimizers.lr: {AMONG_OPTIMIZERS.format('Adagrad, learning_rate')}"),
        ("training.beta1=0.1", f"training.beta1: {AMONG_OPTIMIZERS.format('Adam, beta1')}"),
        ("optimizers.dense={name: SGD, beta1: 1}", "optimizers.dense.beta1: unknown key, known here: "),
        ("no.such.section=1", "no: unknown key, known here: data, model"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_was_expected(tmp_path, override, problem):
    (line,) = problems(tmp_path, GOOD, override)
    assert line.startswith(problem)


def test_an_override_without_a_value_gives_the_default_back(tmp_path):
    assert read(tmp_path, GOOD.replace("out: run", "out: other"), "out=").out == f"{tmp_path}/run"


def test_an_optimizer_that_stands_in_two_places_is_refused(tmp_path):
    line = "model.v_optimizer: the same is set by optimizers.rows; remove one of them"
    overrides = ("model.v_optimizer={name: SGD}", "optimizers.rows={name: Adam}")
    assert line in problems(tmp_path, GOOD, *overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training", "--set training: expected section.key=value"),
        ("=3", "--set =3: expected section.key=value"),
        ("a..b=3", "--set a..b=3: expected section.key=value"),
        ("training.epochs=[1", "--set training.epochs:1:3: not YAML"),
        ("out.deeper=1", "--set out.deeper: 'out' holds 'run', which has no keys of its own"),
    ],
)
def test_an_override_that_cannot_be_read_is_told_by_its_text(tmp_path, override, words):
    (line,) = problems(tmp_path, GOOD, override)
    assert line.startswith(words)


def test_missing_sections_are_named(tmp_path):
    assert problems(tmp_path, "out: x\n") == ["data: is missing", "model: is missing"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: [1\n", "job.yaml:2:1: not YAML: expected ',' or ']'"),
        ("a:\n\t- 1\n", "job.yaml:2:1: not YAML: found character '\\t'"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2:1: not YAML: expected a single document"),
        ("a: !!python/object:os.system x\n", "job.yaml:1:4: not YAML: could not determine a constructor"),
        ("- 1\n", "job.yaml: expected a mapping with data, model and out, got list"),
        ("", "job.yaml: expected a mapping with data, model and out, got nothing"),
    ],
)
def test_a_file_that_is_no_job_is_told_by_line_and_column(tmp_path, text, words):
    (line,) = problems(tmp_path, text)
    assert line.startswith(f"{tmp_path}/{words}")
    assert line.endswith("; YAML wants spaces, not tabs") == ("\t" in text)


def test_keys_that_stand_twice_are_refused_all_at_once(tmp_path):
    lines = problems(tmp_path, GOOD + "out: other\ntraining: {seed: 1, seed: 2}\n")
    assert lines == [
        f"{tmp_path}/job.yaml:6:1: key 'out' stands twice; the first is on line 5, remove one",
        f"{tmp_path}/job.yaml:7:21: key 'seed' stands twice; the first is on line 7, remove one",
    ]


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="no such file; expected a job file"):
        read_job(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match=r"expected a job file \(YAML\), got a folder$"):
        read_job(tmp_path)
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"got a folder; that of this run is .*/job\.yaml"):
        read_job(tmp_path)
    with pytest.raises(ConfigurationError, match="it is not UTF-8 text; of data pslib describe makes a job"):
        read_job(tmp_path / "job.yaml")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("optimizers.rows={name: Adam, lr: 0.1}", "learning_rate"), ("model.embedding_dim=8", "dim")],
)
def test_what_other_libraries_call_a_setting_is_answered_with_our_name(tmp_path, theirs, ours):
    job = {"data": {"train": "x", "schema": {"label": "y", "sparse": ["a"]}}, "model": {"name": "fm"}}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    with pytest.raises(ConfigurationError, match=f"unknown key, did you mean '{ours}'"):
        read_job(tmp_path / "job.yaml", [theirs])


# --- how trainers keep together ---


def test_a_training_is_saved_every_ten_minutes_in_the_folder_of_the_run(tmp_path):
    """With keep_last its ``checkpoint`` has numbered checkpoints anyway, and these go there."""
    job = read(tmp_path, GOOD)
    assert job.checkpoint.every_s == 600
    assert unfinished_place(job) == f"{job.out}/checkpoint-unfinished"
    job = read(tmp_path, GOOD, "checkpoint.keep_last=3")
    assert unfinished_place(job) == f"{job.out}/checkpoint"
    job = read(tmp_path, GOOD, "checkpoint={path: saved, keep_last: 3}")
    assert unfinished_place(job) == job.checkpoint.path == f"{tmp_path}/saved"
    job = read(tmp_path, GOOD, "checkpoint={path: saved}")
    assert unfinished_place(job) == f"{job.out}/checkpoint-unfinished"


def test_beside_a_uri_each_run_has_a_place_of_its_own_for_a_training_that_goes_on(tmp_path):
    places = {
        unfinished_place(read(tmp_path, GOOD, "checkpoint.path=s3://K:S@b/saved?scheme=http", f"out={out}"))
        for out in ("runs/j", "runs/j", "runs/j-2")
    }
    assert len(places) == 2
    for place in places:
        assert re.fullmatch(r"s3://K:S@b/saved-unfinished-[0-9a-f]{8}\?scheme=http", place)


def test_increments_need_a_time_to_save(tmp_path):
    job = read(tmp_path, GOOD, "checkpoint={every_s: 600, keep_last: 3, incremental: 5}")
    assert (job.checkpoint.every_s, job.checkpoint.incremental) == (600.0, 5)
    assert read(tmp_path, job.to_yaml()).checkpoint == job.checkpoint
    (told,) = problems(tmp_path, GOOD, "checkpoint={incremental: 2, every_s: 0}")
    assert "incremental: expected every_s or every_batches with it" in told


def test_stopping_takes_what_a_script_gives_and_says_what_it_needs(tmp_path):
    (told,) = problems(tmp_path, GOOD, "training.stopping={patience: 3}")
    assert told.startswith("training.stopping: expected data to evaluate on after each epoch")
    job = read(tmp_path, GOOD, "training.stopping={patience: 3}", "data.valid=click.parquet")
    assert job.training.stopping.patience == 3
    assert read(tmp_path, job.to_yaml()).training == job.training
    (told,) = problems(tmp_path, GOOD, "training.stopping={factor: 0}", "data.valid=click.parquet")
    assert told.startswith("training.stopping.factor: expected > 0")
    sums = ("data.valid=click.parquet", "optimizers.rows={w: {name: FTRL}}")
    (told,) = problems(tmp_path, GOOD, "training.stopping={}", *sums)
    assert told.startswith("training.stopping.factor: optimizers.rows.w: FTRL makes weights anew from sums")
    assert read(tmp_path, GOOD, "training.stopping={factor: 1}", *sums).training.stopping.factor == 1


def test_consistency_schedule_and_damping_are_read_and_written_back(tmp_path):
    job = read(
        tmp_path,
        GOOD,
        "training.consistency=geo",
        "training.schedule={name: Cosine, batches: 50, warmup: 5}",
        "training.damping=0.5",
        "training.products=bfloat16",
    )
    assert job.training.schedule == Cosine(batches=50, warmup=5)
    assert job.training.products == "bfloat16"
    assert read(tmp_path, job.to_yaml()).training == job.training


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "consistency=sycn",
            "training.consistency: expected one of async, sync, ssp, geo, got 'sycn'",
        ),
        (
            "schedule={name: Cos}",
            "training.schedule.name: expected one of Constant, InverseSqrt, Cosine, Linear, StepDecay,",
        ),
        (
            "schedule=Cosine",
            "training.schedule: expected a mapping, for example {name: Cosine",
        ),
        ("damping=-1", "training.damping: expected >= 0"),
        ("products=bf16", "training.products: expected one of float32, bfloat16, got 'bf16'"),
    ],
)
def test_a_wrong_way_of_keeping_together_is_told_in_one_line(tmp_path, override, line):
    (told,) = problems(tmp_path, GOOD, f"training.{override}")
    assert told.startswith(line)


def test_settings_of_training_that_do_not_go_together_are_told_before_anything_starts(tmp_path):
    (told,) = problems(tmp_path, GOOD, "training.consistency=sync", "training.cache={age_batches: 8}")
    assert told.startswith("training.cache: expected consistency async or ssp, got 'sync'")
    (told,) = problems(tmp_path, GOOD, "training.consistency=geo", "training.ssp_bound=4")
    assert told.startswith("training.ssp_bound: expected consistency 'ssp' with it, got 'geo'")
    told = problems(tmp_path, GOOD, "optimizers.rows={name: FTRL}", "training.damping=0.1")
    assert [line.split(":")[:2] for line in told] == [
        ["training.damping", " part w of a row takes none"],
        ["training.damping", " part v of a row takes none"],
    ]
    (told,) = problems(tmp_path, GOOD, "optimizers.dense={name: FTRL}", "training.schedule={name: StepDecay}")
    assert told.startswith("optimizers.dense: FTRL makes weights anew")


def test_a_table_to_load_that_the_model_has_not_is_told_before_anything_starts(tmp_path):
    (told,) = problems(tmp_path, GOOD, "load.path=saved", "load.tables=[item]")
    assert told == "load.tables: expected one of embedding, got 'item'"
    assert read(tmp_path, GOOD, "load.path=saved", "load.tables=[embedding]").load.tables == ("embedding",)


def test_a_number_of_processes_may_be_a_range_of_which_the_run_begins_with_the_least(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "data: {train: t.parquet, schema: {label: click, sparse: [user]}}\n"
        "model: {name: lr}\n"
        "cluster: {servers: {min: 2, max: 8}, trainers: {min: 1, max: 16}}\n"
    )
    cluster = read_job(job).cluster_config
    assert (cluster.servers, cluster.servers_max) == (2, 8)
    assert (cluster.trainers, cluster.trainers_max) == (1, 16)
    for wrong, line in {
        "{min: 2}": "cluster: servers: expected a number or {min: 2, max: 8}, got {'min': 2}",
        "{min: 9, max: 8}": "cluster.servers_max: expected 0 or at least servers, 9, got 8",
    }.items():
        with pytest.raises(ConfigurationError) as refused:
            read_job(job, [f"cluster.servers={wrong}"])
        assert str(refused.value) == line
