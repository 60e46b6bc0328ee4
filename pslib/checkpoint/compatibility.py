"""Compatibility of a checkpoint with a model and its tables, and options of a load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from pslib.checkpoint.dense import check_dense_optimizer
from pslib.checkpoint.manifest import Manifest
from pslib.errors import CheckpointIncompatibleError, ConfigurationError
from pslib.schema import Schema
from pslib.storage import shown
from pslib.table.descriptions import Model, model_description, model_differences
from pslib.table.tables import DenseSpec, PartSpec, TableSpec


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of a load.

    Attributes
    ----------
    state : bool
        True to load optimizer state; else it starts fresh and optimizers may differ.
    tables : tuple of str or None
        Load rows of these tables only; None: all tables and dense parameters.
    step, time_s : int, float
        Last-seen time of loaded rows, unless everything is loaded.
    new_tables : bool
        True to create tables that are not set up; else they are refused.
    """

    state: bool = True
    tables: tuple[str, ...] | None = None
    step: int = 0
    time_s: float = 0.0
    new_tables: bool = True

    @property
    def all(self) -> bool:
        """Return True if everything is loaded, so that training resumes exactly."""
        return self.state and self.tables is None


def check_fits(
    manifest: Manifest,
    path: str,
    mine: Mapping[str, TableSpec],
    dense: DenseSpec | None,
    options: LoadOptions,
) -> list[str]:
    """Check that tables and dense parameters match a checkpoint; return the names of tables to load.

    Raises
    ------
    CheckpointIncompatibleError
        If they differ from those of the checkpoint.
    """
    saved = manifest.specs
    tables, place = _chosen(mine, saved, path, options), _with_its_model(path, manifest)
    for name in tables:
        if name not in saved:
            raise CheckpointIncompatibleError(
                f"{shown(path)}: no table {name!r} in it; it has {sorted(saved)}"
            )
        _check_parts(mine[name], saved[name], place, options.state)
    length = dense.length if dense else 0
    if options.tables is None and manifest.dense_length != length:
        raise CheckpointIncompatibleError(
            f"{place}: {manifest.dense_length} dense parameters, expected {length}: another model; "
            "load(tables=[...]) takes rows only (job file: load.tables)"
        )
    if options.tables is None and dense and dense.length:
        check_dense_optimizer(dense.optimizer, manifest, path, options.state)
    return tables


def _chosen(
    mine: Mapping[str, TableSpec], saved: Mapping[str, TableSpec], path: str, options: LoadOptions
) -> list[str]:
    """Names of the tables to load."""
    if options.tables is None:
        return list(mine)
    for name in options.tables:
        if name not in mine:
            raise CheckpointIncompatibleError(
                f"tables: expected some of this model's, {sorted(mine)}, got {name!r}"
            )
        if name not in saved:
            raise CheckpointIncompatibleError(
                f"{shown(path)}: no table {name!r} in it; it has {sorted(saved)}"
            )
    return list(options.tables)


def _with_its_model(path: str, manifest: Manifest) -> str:
    """Checkpoint text for messages, with its model class: a mismatch mostly means another model."""
    model = manifest.about.get("model")
    return f"{shown(path)}, a checkpoint of {model}" if isinstance(model, str) else shown(path)


def _check_parts(mine: TableSpec, saved: TableSpec, place: str, state: bool) -> None:
    for part, saved_part in zip(mine.parts, saved.parts, strict=False):
        if _shape(part, state) != _shape(saved_part, state):
            raise CheckpointIncompatibleError(
                f"{place}: table {mine.name} part {saved_part.name} has dim {saved_part.dim} and "
                f"{type(saved_part.optimizer).__name__}; expected {part.name}, dim {part.dim} and "
                f"{type(part.optimizer).__name__}{_way_out(part, saved_part)}"
            )
    if len(mine.parts) != len(saved.parts):
        raise CheckpointIncompatibleError(
            f"{place}: table {mine.name} has parts {[p.name for p in saved.parts]}; "
            f"expected {[p.name for p in mine.parts]}"
        )
    if saved.compact and mine.narrow_parts != saved.narrow_parts:
        raise CheckpointIncompatibleError(
            f"{place}: table {mine.name} has rows without part {saved.compact.wide_from!r}; "
            "set compact with the same wide_from"
        )


def _way_out(part: PartSpec, saved: PartSpec) -> str:
    only_state = _shape(part, False) == _shape(saved, False)
    return "; load(state=False) takes the weights alone (job file: load.state: false)" if only_state else ""


def _shape(part: PartSpec, state: bool) -> tuple[str, int, int, int]:
    """Layout of a part's floats: optimizer state of one kind does not fit another, even of equal length."""
    if not (state and part.state_floats):
        return part.name, part.dim, part.state_floats if state else 0, -1
    return part.name, part.dim, part.state_floats, part.optimizer.kind


def check_model(manifest: Manifest, path: str, mine: Model) -> None:
    """Check that the checkpoint's model is this one; parameters of another model may also fit.

    Parameters
    ----------
    manifest : Manifest
        Accepted without check: one not made by a Trainer, or with columns unknown to this pslib, as it does
        not identify its model; and one with more or fewer dense parameters, which `check_fits` refuses.
    path : str
    mine : mapping
        `pslib.table.descriptions.model_description` of the model to load it into.

    Raises
    ------
    CheckpointIncompatibleError
        If the class differs, it reads other columns, or its dense parameters have other names or shapes.
    """
    about, parameters = manifest.about, manifest.dense.get("parameters")
    if not {"model", "schema"} <= about.keys() or parameters is None:
        return
    if manifest.dense["length"] != sum(prod(parameter["shape"]) for parameter in mine["dense"]):
        return
    try:
        schema = Schema.from_dict(about["schema"]).to_dict()  # with fields added since it was written
    except (ConfigurationError, AttributeError, TypeError, KeyError):
        return  # perhaps of a later pslib
    saved = model_description(mine["table"], about["model"], schema, parameters)
    if told := model_differences(json.loads(json.dumps(saved)), json.loads(json.dumps(mine))):
        raise CheckpointIncompatibleError(
            f"{shown(path)} is of another model: {told}; give what it was trained with, load(state=False) "
            "for a warm start, or load(other_model=True) if this model shall go on with it (job file: "
            "load.state, load.other_model)"
        )
