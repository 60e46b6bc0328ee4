"""What of a checkpoint is to be loaded, and whether a model and its tables can take it up."""

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

__all__ = ["LoadOptions", "check_fits", "check_model"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What of a checkpoint is loaded.

    Attributes
    ----------
    state : bool
        Whether optimizer state comes too; else it begins anew and optimizers may be others.
    tables : tuple of str or None
        Rows of these tables only; None: of all, and dense parameters.
    step, time_s : int, float
        When rows count as seen last, unless everything is loaded.
    new_tables : bool
        Whether tables that nobody has set up are made; else they are refused.
    """

    state: bool = True
    tables: tuple[str, ...] | None = None
    step: int = 0
    time_s: float = 0.0
    new_tables: bool = True

    @property
    def all(self) -> bool:
        """Whether training goes on where the checkpoint was made."""
        return self.state and self.tables is None


def check_fits(
    manifest: Manifest,
    path: str,
    mine: Mapping[str, TableSpec],
    dense: DenseSpec | None,
    options: LoadOptions,
) -> list[str]:
    """See whether tables and dense parameters can take up a checkpoint; return the names of those to load.

    Raises
    ------
    CheckpointIncompatibleError
        When it holds others.
    """
    saved = {spec.name: spec for spec in map(TableSpec.from_dict, manifest.tables)}
    tables, place = _chosen(mine, saved, path, options), _with_its_model(path, manifest)
    for name in tables:
        if name not in saved:
            raise CheckpointIncompatibleError(
                f"{shown(path)}: no table {name!r} in it; it has {sorted(saved)}"
            )
        _check_parts(mine[name], saved[name], place, options.state)
    length = dense.length if dense else 0
    if options.tables is None and manifest.dense.get("length", 0) != length:
        raise CheckpointIncompatibleError(
            f"{place}: {manifest.dense.get('length', 0)} dense parameters, expected {length}: another "
            "model; load(tables=[...]) takes rows only (job file: load.tables)"
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
    """A checkpoint for people, with the class that has learned it: what does not fit is mostly another's."""
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
    """What a part's floats mean: state of one optimizer is no state of another, even of equal length."""
    if not (state and part.state_floats):
        return part.name, part.dim, part.state_floats if state else 0, -1
    return part.name, part.dim, part.state_floats, part.optimizer.kind


def check_model(manifest: Manifest, path: str, mine: Model) -> None:
    """See whether the model that has learned a checkpoint is this one: numbers of another may fit, too.

    Parameters
    ----------
    manifest : Manifest
        One that no Trainer has made, or of columns that this pslib does not know, does not say whose it is,
        and is taken; so is one that has more or fewer dense parameters, which `check_fits` refuses.
    path : str
    mine : mapping
        `pslib.table.descriptions.model_description` of the model that is to have it.

    Raises
    ------
    CheckpointIncompatibleError
        When its class is another, it reads other columns, or its dense parameters have other names or shapes.
    """
    about, parameters = manifest.about, manifest.dense.get("parameters")
    if not {"model", "schema"} <= about.keys() or parameters is None:
        return
    if manifest.dense["length"] != _length_of(mine):
        return
    try:
        schema = Schema.from_dict(about["schema"]).to_dict()  # with what fields have got since it was written
    except (ConfigurationError, AttributeError, TypeError, KeyError):
        return  # of a later pslib perhaps
    saved = model_description(mine["table"], about["model"], schema, parameters)
    if told := model_differences(json.loads(json.dumps(saved)), json.loads(json.dumps(mine))):
        raise CheckpointIncompatibleError(
            f"{shown(path)} is of another model: {told}; give what it was trained with, load(state=False) "
            "for a warm start, or load(other_model=True) if this model shall go on with it (job file: "
            "load.state, load.other_model)"
        )


def _length_of(model: Model) -> int:
    return sum(prod(parameter["shape"]) for parameter in model["dense"])
