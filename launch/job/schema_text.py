"""Text of the section ``data.schema`` of a job file, from a schema."""

from __future__ import annotations

import textwrap

from launch.job.yaml12 import flow_text
from pslib.schema import DenseField, RaggedField, Schema, SparseField

__all__ = ["schema_yaml"]

WIDTH = 100
HIDDEN = "\x00"


def schema_yaml(schema: Schema) -> str:
    """Return the lines below ``data:``; defaults are left out."""
    lines = ["  schema:"]
    lines += [f"    label: {flow_text(schema.label)}"] if schema.label is not None else []
    lines += [f"    more_labels: {flow_text(list(schema.more_labels))}"] if schema.more_labels else []
    lines += [f"    weight: {flow_text(schema.weight)}"] if schema.weight is not None else []
    for kind, fields in (("dense", schema.dense), ("sparse", schema.sparse), ("ragged", schema.ragged)):
        if fields:
            # No line break within an item: its spaces are replaced before wrapping.
            items = ", ".join(flow_text(_short(field)).replace(" ", HIDDEN) for field in fields)
            lines += textwrap.wrap(
                f"{kind}: [{items}]",
                WIDTH,
                initial_indent="    ",
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines).replace(HIDDEN, " ") + "\n"


def _short(field: DenseField | SparseField | RaggedField) -> object:
    """Return the bare name if nothing else differs from the default."""
    default = type(field)(field.name)
    options = {name: getattr(field, name) for name in field.__slots__ if name != "name"}
    changed = {name: value for name, value in options.items() if value != getattr(default, name)}
    return {"name": field.name, **changed} if changed else field.name
