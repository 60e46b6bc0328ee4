"""Options of models: from plain configuration, refused by name, all problems at once."""

import sys

import pytest

from launch.job.model import model_problems
from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, Schema
from pslib.table.initializers import Uniform
from pslib.table.optimizers import Adagrad, Adam
from rec_models import LR, DeepFM, build
from rec_models.torch_model import TorchModel
from tests.support.models.gradient_check import SCHEMA


def test_options_may_come_from_plain_configuration():
    model = build(
        "deepfm",
        SCHEMA,
        {
            "dim": 4,
            "hidden": [8, 4],
            "v_optimizer": {"name": "Adam", "learning_rate": 0.01},
            "v_initializer": {"name": "Uniform", "bound": 0.5},
        },
    )
    assert isinstance(model, DeepFM)
    assert model.hidden == (8, 4)
    assert (model.v_optimizer, model.v_initializer) == (Adam(0.01), Uniform(0.5))
    assert isinstance(model.w_optimizer, Adagrad)


def test_an_unknown_model_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match=r"one of lr, fm, .*got 'depfm' \(did you mean 'deepfm'\?\)"):
        build("depfm", SCHEMA, {})


def test_all_problems_of_all_options_come_at_once_with_suggestions():
    wrong = {
        "dims": 4,
        "dim": 0,
        "hidden": [0],
        "dropout": 1.0,
        "seed": -1,
        "w_optimizer": {"name": "Adagard"},
    }
    with pytest.raises(ConfigurationError) as caught:
        build("deepfm", SCHEMA, wrong)
    problems = "\n".join(caught.value.problems)
    assert (
        "deepfm: unknown option 'dims' (did you mean 'dim'?); it takes batch_norm, dim, dropout" in problems
    )
    assert "deepfm: w_optimizer.name: expected one of SGD" in problems
    for option in ("dim: expected a whole number in 1..4096, got 0", "hidden: ", "dropout: ", "seed: "):
        assert f"DeepFM: {option}" in problems
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"dim": 4.0},
        {"dim": True},
        {"hidden": "400"},
        {"hidden": 400},
        {"hidden": [400, 2.5]},
        {"dropout": "0.2"},
        {"dropout": -0.1},
        {"dropout": float("nan")},
        {"v_optimizer": "Adagrad"},
        {"v_initializer": 0.1},
        {"seed": 2**63},
        {"v_initializer": {"name": "Normal", "std": "wide"}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        build("deepfm", SCHEMA, options)


def test_a_model_made_by_its_class_is_checked_too():
    with pytest.raises(ConfigurationError, match=r"LR: w_optimizer: expected an Optimizer, as in pslib\.A"):
        LR(SCHEMA, w_optimizer="Adagrad")


def test_din_is_taken_from_a_job_file_where_it_has_something_to_attend_to():
    """Elsewhere its options for attention would be taken and change nothing."""
    pooled = Schema(label="click", sparse=["item"], ragged=["viewed"])
    attended = Schema(label="click", sparse=["item"], ragged=[RaggedField("viewed", vocabulary="item")])
    section = {"name": "din", "attention_hidden": [4]}
    (line,) = model_problems(section, pooled, {})
    assert "{name: viewed, vocabulary: item}" in line
    assert model_problems(section, attended, {}) == []
    assert model_problems(section, None, {}) == []  # a schema that is wrong has lines of its own


def test_a_torch_model_without_pytorch_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigurationError, match=r"needs PyTorch.*pip install torch"):
        TorchModel(Schema(label="click", sparse=["user"]), lambda: None)
