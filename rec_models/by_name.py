"""Models by name, for configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.settings import Setting, fields_help, settings_of
from pslib.validation import checked
from rec_models.autoint import AutoInt
from rec_models.dcn import DCN
from rec_models.dcnv2 import DCNv2
from rec_models.deepfm import DeepFM
from rec_models.din import DIN
from rec_models.dlrm import DLRM
from rec_models.dnn import DNN
from rec_models.esmm import ESMM
from rec_models.fibinet import FiBiNET
from rec_models.finalmlp import FinalMLP
from rec_models.fm import FM
from rec_models.gru4rec import GRU4Rec
from rec_models.lr import LR
from rec_models.matching import MatchingModel
from rec_models.mmoe import MMoE
from rec_models.model import Model, MultiTaskModel
from rec_models.narm import NARM
from rec_models.ncf import NCF
from rec_models.nfm import NFM
from rec_models.options import did_you_mean
from rec_models.pnn import PNN
from rec_models.sasrec import SASRec
from rec_models.session import SessionModel
from rec_models.simnet import MultiViewSimnet
from rec_models.srgnn import SRGNN
from rec_models.ssr import SSR
from rec_models.stamp import STAMP
from rec_models.tagspace import TagSpace
from rec_models.two_tower import TwoTower
from rec_models.wide_deep import WideDeep
from rec_models.word2vec import Word2Vec
from rec_models.xdeepfm import XDeepFM

MODELS: dict[str, type[Model]] = {
    "lr": LR,
    "fm": FM,
    "nfm": NFM,
    "wide_deep": WideDeep,
    "dnn": DNN,
    "pnn": PNN,
    "deepfm": DeepFM,
    "dcn": DCN,
    "dcnv2": DCNv2,
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "fibinet": FiBiNET,
    "dlrm": DLRM,
    "finalmlp": FinalMLP,
    "din": DIN,
}
"""Models by the name of their file. A new model is one file and one entry here."""


SESSION_MODELS: dict[str, type[SessionModel]] = {
    "gru4rec": GRU4Rec,
    "narm": NARM,
    "stamp": STAMP,
    "srgnn": SRGNN,
    "sasrec": SASRec,
}
"""Models that rank items, by the name of their file."""

TASK_MODELS: dict[str, type[MultiTaskModel]] = {"esmm": ESMM, "mmoe": MMoE}
"""Models of several labels, by the name of their file."""

MATCHING_MODELS: dict[str, type[MatchingModel] | type[Word2Vec]] = {
    "two_tower": TwoTower,
    "ncf": NCF,
    "ssr": SSR,
    "simnet": MultiViewSimnet,
    "tagspace": TagSpace,
    "word2vec": Word2Vec,
}
"""Models that match the vectors of a query and an item, by the name of their file."""

EVERY: dict[str, type[Model]] = MODELS | TASK_MODELS | SESSION_MODELS | MATCHING_MODELS
"""All models by name."""


for _kind in EVERY.values():
    _kind.__doc__ = f"{inspect.cleandoc(_kind.__doc__ or '')}\n\n{fields_help(_kind)}"


def options_of(kind: type[Model]) -> dict[str, tuple[Any, Setting]]:
    """Return type and Setting of each option of a model."""
    known = settings_of(cast("Any", kind)).items()
    return {name: (hint, setting or Setting("")) for name, (hint, setting) in known if name != "schema"}


@checked()
def build(name: str, schema: Schema, options: Mapping[str, object]) -> Model:
    """Build a model from plain configuration.

    Parameters
    ----------
    name : str
        A key of `MODELS`, `TASK_MODELS`, `SESSION_MODELS` or `MATCHING_MODELS`.
    schema : Schema
    options : mapping of option name to value
        Fields of the model's class. Optimizers and initializers may be mappings such as
        ``{"name": "Adagrad", "learning_rate": 0.05}``, tuples may be lists.

    Raises
    ------
    ConfigurationError
        When the name or an option is unknown or a value out of range; all problems at once, with suggestions.

    Examples
    --------
    >>> from pslib.schema import Schema
    >>> schema = Schema(label="click", sparse=["user", "item"])
    >>> build("fm", schema, {"dim": 4}).table().dim
    5
    """
    if name not in EVERY:
        raise ConfigurationError(
            f"model: expected one of {', '.join(EVERY)}, got {name!r}{did_you_mean(name, EVERY)}"
        )
    known = options_of(EVERY[name])
    problems = [
        f"{name}: unknown option {option!r}{did_you_mean(option, known)}; it takes {', '.join(sorted(known))}"
        for option in options
        if option not in known
    ]
    values: dict[str, object] = {}
    for option in sorted(known.keys() & options.keys()):
        try:
            values[option] = known[option][1].read(option, options[option])
        except ConfigurationError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    return _made(EVERY[name], schema, values, problems)


def _made(kind: type[Model], schema: Schema, values: dict[str, object], problems: list[str]) -> Model:
    """Construct the model even if problems are known already, to report all problems at once."""
    try:
        model = kind(schema, **values)  # type: ignore[arg-type]
    except ConfigurationError as error:
        problems = [*problems, *error.problems]
    if problems:
        raise ConfigurationError(*problems)
    return model
