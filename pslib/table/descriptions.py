"""Descriptions of tables and models, compared to reject a mismatch with a readable reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from pslib.errors import ConfigurationError
from pslib.table.tables import DenseSpec, PartSpec, TableSpec

Model = Mapping[str, Any]
NAMES_SAID = 6
"""Most columns or dense parameters named in a message; a model may have hundreds."""


def check_tables(tables: Iterable[TableSpec]) -> None:
    """Raise ConfigurationError if two of them have one name and differ."""
    known: dict[str, TableSpec] = {}
    for spec in tables:
        if (mine := known.setdefault(spec.name, spec)) != spec:
            raise ConfigurationError(
                f"tables: expected one description of {spec.name}, got two: {table_differences(mine, spec)}; "
                "give one of them another name"
            )


def table_differences(known: TableSpec, came: TableSpec) -> str:
    """Differences between two descriptions of a table: existing, then received."""
    return "; ".join(_of_tables(known, came))


def _of_tables(known: TableSpec, came: TableSpec) -> Iterator[str]:
    names = [[part.name for part in spec.parts] for spec in (known, came)]
    if names[0] != names[1]:
        yield f"it has parts {names[0]}, got {names[1]}"
    else:
        for mine, other in zip(known.parts, came.parts, strict=True):
            yield from _of_fields(f"part {mine.name}: ", mine, other)
    yield from _of_fields("", known, came, but="parts")


def dense_differences(known: DenseSpec, came: DenseSpec) -> str:
    """Differences between two descriptions of dense parameters: existing, then received."""
    return "; ".join(_of_fields("", known, came))


def _of_fields(
    prefix: str, known: PartSpec | TableSpec | DenseSpec, came: object, but: str = ""
) -> Iterator[str]:
    for field in fields(known):
        mine, other = getattr(known, field.name), getattr(came, field.name)
        if field.name != but and mine != other:
            yield f"{prefix}it has {field.name} {mine!r}, got {other!r}"


def model_description(
    table: str, name: str, schema: Mapping[str, Any], dense: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Build the description by which models with equal row layouts are told apart.

    Parameters
    ----------
    table : str
        Table of the model.
    name : str
        Name of the model's class.
    schema : mapping
        `Schema.to_dict`; labels and weights are omitted, as prediction needs none.
    dense : iterable of mapping
        Name and shape of each dense parameter.
    """
    kinds = ("dense", "sparse", "ragged")
    columns = {kind: [_plainly(column) for column in schema.get(kind, [])] for kind in kinds}
    return {"table": table, "model": name, "columns": columns, "dense": [dict(one) for one in dense]}


def _plainly(column: Mapping[str, Any]) -> dict[str, Any]:
    """Omit defaults from a column: a name equal to that of its vocabulary or source column."""
    plain = {name: value for name, value in column.items() if value is not None}
    if plain.get("vocabulary") == plain["name"]:
        del plain["vocabulary"]
    of = plain.pop("of", plain["name"])
    columns = [of] if isinstance(of, str) else list(of)
    return plain if columns == [plain["name"]] else {**plain, "of": columns}


def models_of(known: Mapping[str, Model], came: Iterable[Model]) -> dict[str, Model]:
    """Merge received models into those of a cluster, by table.

    Raises
    ------
    ConfigurationError
        If a table, or the dense parameters, belong to another model.
    """
    models = dict(known)
    for one in came:
        table = str(one["table"])
        mine = models.get(table)
        if mine is not None and mine != one:
            raise ConfigurationError(
                f"table {table} is trained as another model: {'; '.join(_of_models(mine, one))}; {WAY_OUT}"
            )
        owner = next((model for model in models.values() if model["dense"] and model["table"] != table), None)
        if owner and one["dense"]:
            raise ConfigurationError(
                f"the dense parameters of this cluster are those of {owner['model']} and table "
                f"{owner['table']}, got {one['model']} and table {table}: a cluster holds one set of them; "
                f"{WAY_OUT}"
            )
        models[table] = one
    return models


def model_differences(known: Model, came: Model) -> str:
    """Differences between two descriptions of a model: existing, then received; empty if equal."""
    return "; ".join(_of_models(known, came))


WAY_OUT = (
    "give the other model a cluster of its own, or say Trainer(..., share=True) if both shall train the "
    "same parameters"
)


def _of_models(known: Model, came: Model) -> Iterator[str]:
    if known["model"] != came["model"]:
        yield f"it is {known['model']}, got {came['model']}"
    if known["columns"] != came["columns"]:
        mine, other = (
            _names(one for kind in model["columns"].values() for one in kind) for model in (known, came)
        )
        yield f"it reads columns {mine}, got " + (other if other != mine else "the same, read in another way")
    if known["dense"] != came["dense"]:
        mine, other = (_names(model["dense"]) for model in (known, came))
        yield f"it has dense parameters {mine}, got " + (other if other != mine else "other shapes of them")


def _names(described: Iterable[Any]) -> str:
    """Names of columns or parameters, truncated if there are many."""
    names = [str(one["name"]) if isinstance(one, Mapping) else str(one) for one in described]
    more = f" and {len(names) - NAMES_SAID} more" if len(names) > NAMES_SAID else ""
    return ", ".join(names[:NAMES_SAID]) + more if names else "none"
