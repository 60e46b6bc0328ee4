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
        ("optimizer", {"name": "Sgd"}, r"optimizer: expected one of SGD, Momentum, .*, got 'Sgd'"),
        ("optimizer", {"learning_rate": 0.1}, r"optimizer: expected a name, one of SGD, .*, got none$"),
        ("optimizer", {"name": "SGD", "rate": 1}, r"optimizer SGD: unknown 'rate'; it takes clip_norm, .*"),
        ("optimizer", {"name": "SGD", "learning_rate": "x"}, r"SGD.learning_rate: expected a number"),
        ("initializer", {"name": "Zeros"}, r"initializer: expected one of Constant, .* got 'Zeros'"),
        ("initializer", {"name": "Normal", "bound": 1}, r"initializer Normal: unknown 'bound'; it takes std"),
        ("initializer", {"name": "Normal", "std": None}, r"Normal.std: expected a number, got None"),
        ("initializer", {"name": "Normal", "std": 10**400}, r"Normal.std: expected a number, got "),
        ("schedule", {"name": "Poly"}, r"schedule: expected one of Constant, .*, got 'Poly'"),
        ("schedule", {"name": "Cosine", "steps": 1}, r"schedule Cosine: unknown 'steps'; it takes batches"),
        ("schedule", {"name": "Cosine", "batches": "x"}, r"Cosine.batches: expected a whole number in 1"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named_with_what_is(kind: str, plain: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{line}"):
        READ[kind](plain)
