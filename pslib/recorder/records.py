"""Records of a training: columns of ``metrics.jsonl``, `Trainer.history`, event files and ``run.png``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

INT64_END = 1 << 63
PROGRESS, EVALUATION = "progress", "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One flat record; a column that does not apply, or is undefined, is None.

    Attributes
    ----------
    event : str
        ``progress`` of the training, or ``evaluation`` of its model on other data.
    seconds : float
        Seconds since the start of the records.
    epoch : int
        Finished epochs of the whole training.
    examples : int
        Examples trained so far, those of earlier runs that this one continues included.
    examples_per_s : float or None
        Speed since the progress record before.
    loss : float or None
        Mean training loss of the examples since the progress record before, each before it was learnt; of an
        evaluation that of the progress record before it.
    auc, calibration : float or None
        Of a progress record: over the last ten of them, predicted before each example was learnt, from
        `LogitBins`. Of an evaluation: of its data.
    logloss : float or None
        Log loss of an evaluation.
    recall, mrr, ndcg : float or None
        Figures of a ranking at ``k``: a record for each k.
    k : int or None
    name, label : str or None
        Name of the evaluation, such as ``valid`` or ``test``, and its label where the schema has several.
    evaluated, positives : int or None
        Examples of the evaluation, and those with label 1.
    files : int or None
        Files of a stream that were trained before the evaluation.
    """

    event: str
    seconds: float
    epoch: int
    examples: int
    examples_per_s: float | None = None
    loss: float | None = None
    auc: float | None = None
    calibration: float | None = None
    logloss: float | None = None
    recall: float | None = None
    mrr: float | None = None
    ndcg: float | None = None
    k: int | None = None
    name: str | None = None
    label: str | None = None
    evaluated: int | None = None
    positives: int | None = None
    files: int | None = None

    def __post_init__(self) -> None:
        for name in COLUMNS:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                object.__setattr__(self, name, None)

    def plain(self) -> dict[str, Any]:
        """Return the record by column."""
        return {name: getattr(self, name) for name in COLUMNS}

    @staticmethod
    def of(line: Mapping[str, Any]) -> Record:
        """Build the record in a line of ``metrics.jsonl``; its other columns are ignored.

        Raises
        ------
        TypeError
            If a column is missing, or is of another type.
        """
        values = {name: line[name] for name in COLUMNS if name in line}
        if wrong := [name for name, value in values.items() if not _fits(name, value)]:
            raise TypeError(f"columns of another type: {', '.join(wrong)}")
        return Record(**values)


COLUMNS: dict[str, type] = {
    one.name: next(kind for kind in (*get_args(hint), hint) if kind is not type(None))
    for one in fields(Record)
    for hint in [get_type_hints(Record)[one.name]]
}
"""Columns of a record, with their types."""
REQUIRED = [one.name for one in fields(Record) if one.default is MISSING]
"""Columns that are never null."""


def _fits(name: str, value: Any) -> bool:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return name not in REQUIRED
    if type(value) is int:
        return COLUMNS[name] in (int, float) and abs(value) < INT64_END
    return type(value) is COLUMNS[name]


def evaluation_records(
    result: Mapping[str, Any], *, seconds: float, epoch: int, examples: int, loss: float | None
) -> Iterator[Record]:
    """Yield the records of an evaluation: one, or of a ranking one for each k.

    Parameters
    ----------
    result : mapping
        Outcome of the call, as the coordinator has it.
    seconds : float
    epoch, examples, loss : int, int, float or None
        What was trained by then, and the last training loss.
    """
    about: dict[str, Any] = {
        "event": EVALUATION,
        "seconds": seconds,
        "epoch": result.get("epoch", epoch),
        "examples": examples,
        "loss": loss,
        "name": result.get("name") or result.get("kind", EVALUATION),
        "label": result.get("label"),
        "evaluated": result.get("examples"),
        "files": result.get("files"),
    }
    if "at" not in result:
        yield Record(**(about | {name: result.get(name) for name in ("positives", *FIGURES)}))
    for place, k in enumerate(result.get("at", ())):
        yield Record(**(about | {"k": k} | {name: result[name][place] for name in RANKINGS}))


FIGURES = ("auc", "logloss", "calibration")
"""Figures of an evaluation of clicks."""
RANKINGS = ("recall", "mrr", "ndcg")
"""Figures of a ranking."""


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a ``metrics.jsonl``, without lines that a crash cut, or of another format."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            with suppress(ValueError, TypeError):  # no JSON, or columns are missing
                yield Record.of(json.loads(text))
