"""The section ``ranking`` of a job file, and what of a file does not fit a model that ranks items."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from launch.training_settings import Section
from rec_models import MODELS, SESSION_MODELS, TASK_MODELS

__all__ = ["K_MAX", "RankingSection", "ranking_problems", "ranks_items"]

K_MAX = 1 << 20
"""More places than anybody looks at."""

Column = Annotated[str, Field(min_length=1)]


class RankingSection(Section):
    """How a model that ranks items is evaluated; see `pslib.Trainer.rank`."""

    at: list[Annotated[int, Field(ge=1, le=K_MAX)]] = Field(default=[20], min_length=1)
    history: Column | None = None
    target: Column | None = None
    exclude_seen: bool = False


def ranks_items(name: str) -> bool:
    """Whether a model of this name ranks items, instead of predicting clicks."""
    return name not in MODELS and name not in TASK_MODELS


def ranking_problems(
    name: str, ranking: RankingSection | None, has_items: bool, has_label: bool
) -> list[str]:
    """What of a file does not fit its kind of model, one line each.

    Parameters
    ----------
    name : str
        Of the model.
    ranking : RankingSection or None
    has_items, has_label : bool
        Whether the file names ``data.items``, and a label in ``data.schema``.
    """
    if not ranks_items(name):
        found = {
            "ranking: {} predicts clicks and ranks no items; remove it": ranking is not None,
            "data.items: {} predicts clicks and ranks no items; remove it": has_items,
        }
    else:
        session = name in SESSION_MODELS
        labelled = session and has_label
        unknown = ranking is not None and ranking.exclude_seen and not (session or ranking.history)
        found = {
            "data.schema.label: {} learns which item comes next and reads no label; remove it": labelled,
            "ranking.exclude_seen: expected the column of items before; give ranking.history": unknown,
        }
    return [problem.format(name) for problem, is_so in found.items() if is_so]
