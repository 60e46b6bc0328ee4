"""Settings are defined once: what is said of a field reaches the job file, `--set`, help, page and schema."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

import launch.job.job
import launch.job.settings_reference
from launch.cli.main import main
from launch.job.job import Job, read_job
from launch.job.sections import TrainingSection
from launch.job.settings_reference import job_schema, option_rows, rows_of, settings_page, settings_text
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.settings import Setting, Settings, settings_as_keywords, settings_of
from pslib.table.tables import TablePolicies
from pslib.trainer import Trainer
from pslib.trainer.settings import CacheSettings, LoadSettings, RankingSettings, TrainerSettings
from rec_models import DeepFM
from rec_models.by_name import EVERY

ROOT = Path(__file__).resolve().parents[2]
JOB = """\
data: {train: a.parquet, schema: {label: y, sparse: [a]}}
model: {name: lr}
"""


def test_the_page_of_settings_is_what_the_classes_say(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert page == settings_page(), "pslib config page > docs/reference/settings.md"
    assert main(["config", "page"]) == 0
    assert capsys.readouterr().out == page


def test_every_setting_says_what_it_is_for() -> None:
    assert [row.path for row in rows_of(Job) if not row.help.endswith(".")] == []


def test_a_setting_is_shown_by_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "training.batch_rows"]) == 0
    told = "training.batch_rows: whole number, 1..16777216 examples, default 4096\n    Examples of a batch.\n"
    assert capsys.readouterr().out == told
    assert main(["config", "show", "training.batchrows"]) == 64
    assert "no such setting, did you mean 'training.batch_rows'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("training.lr", "'optimizers.rows' and 'optimizers.dense', for learning_rate of an optimizer"),
        ("dense_lr", "'optimizers.rows' and 'optimizers.dense', for learning_rate of an optimizer"),
        ("weight_decay", "'optimizers.rows' and 'optimizers.dense', for weight_decay of an optimizer"),
        ("training.optimizer", "'optimizers'"),
        ("embedding_dim", "'model.dim'"),
        ("model.embedding_dim", "'model.dim'"),
        ("training.batch_size", "'training.batch_rows'"),
        ("batch_size", "'training.batch_rows'"),
        ("training.dropout", "'model.dropout'"),
        ("data.by", "'data.test_by'"),
        ("validation_split", "'data.test_share'"),
        ("workers", "'cluster.trainers'"),
        ("training.stalenes", "'training.staleness'"),
        ("trainning.seed", "'training.seed'"),
    ],
)
def test_a_setting_that_is_not_there_is_answered_with_the_one_that_is_meant(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    assert main(["config", "show", word]) == 64
    assert capsys.readouterr().err == f"pslib: {word}: no such setting, did you mean {meant}?\n"


def test_options_of_models_are_settings_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row for row in option_rows() if not row.help.endswith(".")] == []
    assert main(["config", "show", "model.word2vec"]) == 0
    assert "model.window: whole number, 1..64, default 5\n    Maximum number" in capsys.readouterr().out
    assert main(["config", "show", "model.encoder"]) == 0
    assert capsys.readouterr().out.endswith("All views share it. Of simnet.\n")
    assert "hidden : tuple[int, ...]\n    Units of each hidden layer. (1..65536)" in (DeepFM.__doc__ or "")


def test_the_schema_has_the_options_of_the_model_that_is_named() -> None:
    section = job_schema()["$defs"]["ModelSection"]
    of = {one["if"]["properties"]["name"]["const"]: one["then"] for one in section["allOf"]}
    assert section["properties"]["name"]["enum"] == list(of) == list(EVERY)
    assert of["fm"]["properties"]["dim"]["maximum"] == 4096
    assert of["deepfm"]["properties"]["hidden"]["items"]["minimum"] == 1
    assert of["gru4rec"]["properties"]["rank_loss"]["enum"] == ["cross-entropy", "bpr-max"]
    assert "hidden" not in of["fm"]["properties"]
    assert of["fm"]["additionalProperties"] is False


def test_the_schema_takes_what_the_job_file_takes() -> None:
    defs = job_schema()["$defs"]
    assert defs["TrainingSection"]["properties"]["batch_rows"]["minimum"] == 1
    assert defs["ClusterSection"]["properties"]["server_memory_bytes"]["type"] == ["integer", "string"]
    assert defs["WireFormat"]["properties"]["dense"]["enum"] == ["float32", "bfloat16", "float16"]
    assert defs["WireFormat"]["additionalProperties"] is False
    assert defs["Schema"]["properties"]["dense"]["items"]["anyOf"][0] == {"type": "string"}
    rules = defs["TablePolicies"]["properties"]["eviction"]["items"]
    assert rules["properties"]["name"]["enum"] == ["ByAge", "ByNorm", "ByScore"]


def test_the_job_file_nests_the_classes_of_python() -> None:
    job = {name: field.annotation for name, field in Job.model_fields.items()}
    assert settings_of(job["data"])["schema"][0] is Schema
    assert job["table"] is TablePolicies
    assert (job["load"], job["ranking"]) == (LoadSettings | None, RankingSettings | None)


def added_field() -> str:
    """The field that the first diff in CONTRIBUTING.md adds."""
    diff = re.split(r"^```(?:diff)?$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1]
    return next(line[1:].strip() for line in diff.splitlines() if re.match(r"\+[^+]", line))


def test_a_field_that_is_added_as_contributing_says_is_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = added_field()
    name = field.partition(":")[0]
    module = ModuleType("pslib_with_another_setting")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where annotations are looked up
    home = module.__dict__
    home |= {"Annotated": Annotated, "Setting": Setting, "dataclass": dataclass, "Base": CacheSettings}
    exec(f"@dataclass(frozen=True)\nclass CacheSettings(Base):\n    {field}\n", home)
    home |= {"BaseTraining": TrainingSection, "BaseJob": Job}
    exec(
        "@dataclass(frozen=True, kw_only=True)\nclass Training(BaseTraining):\n"
        "    cache: CacheSettings = CacheSettings()\n\n"
        "class Job(BaseJob):\n    training: Training = Training()\n",
        home,
    )
    for user in (launch.job.job, launch.job.settings_reference):
        monkeypatch.setattr(user, "Job", home["Job"])
    (tmp_path / "job.yaml").write_text(JOB + f"training: {{cache: {{{name}: 64}}}}\n")
    assert getattr(read_job(tmp_path / "job.yaml").training.cache, name) == 64
    job = read_job(tmp_path / "job.yaml", [f"training.cache.{name}=9"])
    assert getattr(job.training.cache, name) == 9
    assert f"{name}: 9" in job.to_yaml()
    with pytest.raises(ConfigurationError, match=f"training.cache.{name}: expected >= 0, got -1"):
        read_job(tmp_path / "job.yaml", [f"training.cache.{name}=-1"])
    with pytest.raises(ConfigurationError, match=f"unknown key, did you mean '{name}'"):
        read_job(tmp_path / "job.yaml", [f"training.cache.{name[:-1]}=1"])
    with pytest.raises(ConfigurationError, match=f"cache.{name}: expected a whole number in 0"):
        home["CacheSettings"](**{name: -1})
    assert settings_text(f"training.cache.{name}").startswith(f"training.cache.{name}: whole number, 0..")
    assert f"| `training.cache.{name}` | whole number | 0 |" in settings_page()
    assert job_schema()["$defs"]["CacheSettings"]["properties"][name]["maximum"] == 1 << 28


@dataclass(frozen=True)
class Odd(Settings):
    whole: Annotated[int | None, Setting("W.", ge=2)] = None
    open_below: Annotated[float, Setting("O.", gt=0, le=1)] = 1.0
    endless: Annotated[float, Setting("E.", gt=0, unit="seconds", finite=False)] = float("inf")
    word: Annotated[str, Setting("T.", choices=("a", "b"))] = "a"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"whole": 1}, "Odd.whole: expected a whole number, 2 or more, got 1"),
        ({"whole": True}, "Odd.whole: expected a whole number, 2 or more, got True"),
        ({"open_below": 0}, "Odd.open_below: expected a number above 0 and at most 1, got 0"),
        ({"open_below": float("nan")}, "Odd.open_below: expected a number above 0 and at most 1, got nan"),
        ({"endless": -1}, "Odd.endless: expected seconds, above 0, got -1"),
        ({"endless": float("nan")}, "Odd.endless: expected seconds, above 0, got nan"),
        ({"word": "c"}, "Odd.word: expected one of a, b, got 'c'"),
    ],
)
def test_what_an_annotation_does_not_allow_is_told_in_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Odd(**given)
    assert caught.value.problems == (told,)


def test_the_fields_of_a_trainers_settings_are_its_keywords() -> None:
    first, second, *keywords = inspect.signature(Trainer).parameters.values()
    assert (first.name, second.name) == ("model", "cluster")
    settings = TrainerSettings()
    assert {one.name: one.default for one in keywords} == {
        name: getattr(settings, name) for name in settings_of(TrainerSettings)
    }
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in keywords)
    assert "\nbatch_rows : int\n    Examples of a batch. (1..16777216 examples)\n" in str(
        Trainer.__init__.__doc__
    )


class Holder:
    @settings_as_keywords(Odd)
    def __init__(self, one: int, two: int, given: Odd) -> None:
        self.all = one, two, given


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"hole": 3}, "Holder: unknown keyword 'hole'; did you mean 'whole'?"),
        ({"given": 3}, "Holder: unknown keyword 'given'; it takes whole, open_below, endless, word"),
        ({"two": 3}, "multiple values for argument 'two'"),
    ],
)
def test_a_keyword_that_is_no_field_is_told_with_the_one_meant(keywords: dict[str, int], told: str) -> None:
    assert Holder(1, 2, whole=3).all == (1, 2, Odd(whole=3))
    with pytest.raises(TypeError, match=re.escape(told)):
        Holder(1, 2, **keywords)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="too many positional arguments"):
        Holder(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"Odd\.whole: expected a whole number, 2 or more, got 1"):
        Holder(1, 2, whole=1)
