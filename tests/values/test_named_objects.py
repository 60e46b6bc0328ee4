"""Optimizers, initializers and schedules from the plain form of job files, messages and manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pslib.errors import ConfigurationError
from pslib.table.initializers import Constant, Normal, Uniform, initializer_from_dict
from pslib.table.optimizers import OPTIMIZERS, Adam, Momentum, optimizer_from_dict
from pslib.table.schedules import SCHEDULES, Cosine, StepDecay, schedule_from_dict

Read = Callable[[dict[str, Any]], Any]
READ: Mapping[str, Read] = {
    "optimizer": optimizer_from_dict,
    "initializer": initializer_from_dict,
    "schedule": schedule_from_dict,
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("optimizer", made()) for made in OPTIMIZERS.values()),
        ("optimizer", Adam(0.5, weight_decay=0.25, clip_norm=0.5)),
        ("optimizer", Momentum(0.5, nesterov=True)),
        *(("initializer", one) for one in (Constant(2.0), Uniform(0.5), Normal(0.25))),
        *(("schedule", made()) for made in SCHEDULES.values()),
        ("schedule", Cosine(batches=7, warmup=3)),
        ("schedule", StepDecay(every=5, ratio=0.25)),
    ],
    ids=str,
)
def test_what_is_written_plainly_is_read_back(kind: str, value: Any) -> None:
    plain = value.to_dict()
    kept = dict(plain)
    assert READ[kind](plain) == value
    assert type(READ[kind](plain)) is type(value)
    assert plain == kept, "the caller's mapping stays as it is"


@pytest.mark.parametrize(
    ("kind", "plain", "line"),
    [
        ("optimizer", {"name": "Sgd"}, r"optimizer.name: expected one of SGD, .*, did you mean 'SGD'"),
        ("optimizer", {"learning_rate": 0.1}, r"optimizer.name: is missing; one of SGD, "),
        ("optimizer", ["SGD"], r"optimizer: expected a mapping, with a name, one of SGD, .*, got \['SGD'\]"),
        ("optimizer", {"name": "SGD", "rate": 1}, r"optimizer.rate: unknown key, known here: learning_rate"),
        ("optimizer", {"name": "SGD", "lr": 1}, r"optimizer.lr: unknown key, did you mean 'learning_rate'"),
        ("optimizer", {"name": "SGD", "learning_rate": "x"}, r"optimizer.learning_rate: expected a number"),
        ("initializer", {"name": "Zeros"}, r"initializer.name: expected one of Constant, .* got 'Zeros'"),
        ("initializer", {"name": "Normal", "bound": 1}, r"initializer.bound: unknown key, known here: std"),
        ("initializer", {"name": "Normal", "std": None}, r"initializer.std: expected a number in .*got None"),
        ("initializer", {"name": "Normal", "std": 10**400}, r"initializer.std: expected a number in "),
        ("schedule", {"name": "Poly"}, r"schedule.name: expected one of Constant, .*, got 'Poly'"),
        ("schedule", {"name": "Cosine", "steps": 1}, r"schedule.steps: unknown key, known here: warmup"),
        ("schedule", {"name": "Cosine", "batches": "x"}, r"schedule.batches: expected a whole number in 1"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named_with_what_is(kind: str, plain: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{line}"):
        READ[kind](plain)
