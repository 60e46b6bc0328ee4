"""Models of checkpoints: a model made again from what its checkpoint says of it."""

from __future__ import annotations

from typing import Any

from pslib.checkpoint import newest, newest_of_run, read_manifest
from pslib.errors import CheckpointError, ConfigurationError
from pslib.schema import Schema
from pslib.scoring import LoadedModel
from pslib.storage import place_of, shown
from pslib.trainer.model import TrainableModel
from pslib.validation import checked
from rec_models.by_name import EVERY, build
from rec_models.model import Model


@checked()
def load(path: Any, model: TrainableModel | None = None, *, items: Any = None) -> LoadedModel:
    """Open the model of a checkpoint in this process: to predict, evaluate, and find vectors and items.

    Parameters
    ----------
    path : path or URI
        A checkpoint, a folder of numbered ones, of which the newest is taken, or the folder of a run.
    model : TrainableModel or None
        The model that it was trained with; needed where it is none of `rec_models`, for example a
        `rec_models.torch_model.TorchModel`. None: the checkpoint says it.
    items : path, several paths, or a table, or None
        Data whose items are ranked, for models that rank items: the training sessions, or rows of items.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged, of another model, or doesn't say of which.

    Examples
    --------
    >>> model = pslib.load("runs/clicks/checkpoint")                                       # doctest: +SKIP
    >>> model.predict({"user": ["u1", "u2"], "item": [7, 8], "price": [0.5, None]})        # doctest: +SKIP
    array([0.04, 0.11], dtype=float32)
    """
    place = newest_of_run(place_of(path))
    return LoadedModel(place, model or model_of(place), items)


def model_of(path: str) -> Model:
    """Make the model that a checkpoint was trained with.

    Raises
    ------
    CheckpointError
        If it is none of `rec_models`, or the checkpoint was written before it named a model's options.
    """
    place = newest(path)
    about = read_manifest(place).about
    name = about.get("model")
    short = next((short for short, kind in EVERY.items() if kind.__name__ == name), None)
    if short is None or "options" not in about or "schema" not in about:
        why = (
            f"is of a {name}, which is no model of rec_models"
            if name and short is None
            else ("does not say with which options its model was made")
        )
        raise CheckpointError(f"{shown(place)} {why}; give it: pslib.load(path, model)")
    try:
        return build(short, Schema.from_dict(about["schema"]), about["options"])
    except (ConfigurationError, AttributeError, TypeError, KeyError) as error:
        line = getattr(error, "problems", [str(error)])[0]
        raise CheckpointError(
            f"{shown(place)}: its {name} can't be made by this version: {line}; give it: "
            "pslib.load(path, model)"
        ) from error
