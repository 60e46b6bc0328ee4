"""Inputs of a graph, and places in them: a model is traced on these in place of a batch.

===================  ==================  ==================================================================
input                shape               what it is
===================  ==================  ==================================================================
``sparse``           (B, F, D)           the row of each sparse field, all parts of the table side by side
``pooled.FIELD``     (B, D)              sum or mean of the rows of a list; zeros of an empty one
``elements.FIELD``   (B, T.FIELD, D)     rows of a list's elements, zeros behind its end; T is at least 1
``lengths.FIELD``    (B,) int64          number of elements
``keys.FIELD``       (B, T.FIELD) int64  keys of the elements, where a model asks which are equal
``dense``            (B, N)              dense fields, filled and squeezed
===================  ==================  ==================================================================

A list is pooled or read by elements, as the model reads it. Indices that a model computes from a batch are
tokens here, which say what the index is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, Schema
from rec_models.engine.packed_sequences import one_step, packed
from rec_models.export.graph import BATCH, Graph, Symbol
from rec_models.srgnn import SessionGraphs, session_graphs


class Rows:
    """Rows of the table, or some of their columns: no input, since what is gathered from them is one.

    Attributes
    ----------
    shape : (int, int)
        As of an array; the number of rows is 0, since no layer reads it.
    first : int
        First column in the table's row.
    width : int
        Number of columns.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, first: int, width: int, whole: int) -> None:
        self.first, self.width, self.whole = first, width, whole
        self.shape = (0, width)

    def columns(self, first: int, width: int) -> Rows:
        """Return some of these columns."""
        return Rows(self.first + first, width, self.whole)


# --- places: tokens in place of index arrays


@dataclass(frozen=True)
class Column:
    """The key of a sparse field of each example, by its place in the batch's schema."""

    place: int


class Columns:
    """``batch.sparse``, of which a model takes one column at a time."""

    def __getitem__(self, key: tuple[slice, int]) -> Column:
        if key[0] != slice(None):
            raise TypeError("an index of batch.sparse other than [:, column]")
        return Column(index(key[1]))


@dataclass(frozen=True)
class Lists:
    """The lists of a ragged field."""

    field: str

    @property
    def offsets(self) -> Lists:
        """Ends of the lists: the same token."""
        return self


@dataclass(frozen=True)
class Elements:
    """The elements of lists: an index of rows."""

    field: str


@dataclass(frozen=True)
class InOrder:
    """An order of the elements of lists, whichever: in a graph elements stay where they are."""

    field: str


@dataclass(frozen=True)
class Times:
    """The number of each element in its list, from 0."""

    field: str


@dataclass(frozen=True)
class Last:
    """The last element of each list."""

    field: str


@dataclass(frozen=True)
class Pairs:
    """Pairs of an element with itself and those before it: of each element, or of the last ones alone."""

    field: str
    of_last: bool


@dataclass(frozen=True)
class Neighbours:
    """Ends of the edges between elements that follow each other: the earlier ones, or the later ones."""

    field: str
    later: bool


@dataclass(frozen=True)
class OneStep:
    """Steps of lists of one element each."""


@dataclass(frozen=True)
class Steps:
    """Packed sequences, see `rec_models.engine.packed_sequences.Packed`."""

    field: str

    @property
    def values(self) -> Elements:
        """Rows of the elements."""
        return Elements(self.field)

    @property
    def indices(self) -> InOrder:
        """Order of the elements."""
        return InOrder(self.field)

    @property
    def places(self) -> InOrder:
        """Order of the elements."""
        return InOrder(self.field)

    @property
    def times(self) -> Times:
        """Numbers of the elements in their lists."""
        return Times(self.field)

    def prefixes(self, of: Last | None = None) -> Pairs:
        """Return the pairs of all elements, or of the last ones."""
        return Pairs(self.field, of_last=of is not None)

    def last(self) -> tuple[Lists, Last]:
        """Return the lists, empty ones too, and their last elements."""
        return Lists(self.field), Last(self.field)


def _steps(lists: Lists, without_last: bool = False, at_most: int | None = None) -> Steps:
    """Lists are cut before they are an input of the graph."""
    return Steps(lists.field)


def _one_step(rows: str) -> OneStep:
    return OneStep()


def _graphs(values: Elements, pairs: Pairs) -> SessionGraphs:
    """In a graph each element has the state of its node: those of equal keys have equal ones."""
    if not pairs.of_last:
        raise ConfigurationError("to onnx: the graphs of the prefixes of a session have no form in ONNX")
    field = values.field
    tokens: dict[str, Any] = {
        "firsts": InOrder(field),
        "visits": pairs,
        "ends": Last(field),
        "sources": Neighbours(field, later=False),
        "targets": Neighbours(field, later=True),
    }
    return SessionGraphs(**tokens)


for _function, _kind, _made in (
    (packed, Lists, _steps),
    (one_step, str, _one_step),
    (session_graphs, Elements, _graphs),
):
    _dispatched: Any = _function
    _dispatched.register(_kind, _made)


# --- the batch


class Inputs:
    """Inputs of a graph, in place of a batch.

    Parameters
    ----------
    graph : Graph
    schema : Schema
        Fields of the batch.
    dim : int
        Floats of a row.
    """

    def __init__(self, graph: Graph, schema: Schema, dim: int) -> None:
        self._graph, self._schema, self._dim = graph, schema, dim
        self.sparse = Columns()
        self.ragged = {field.name: Lists(field.name) for field in schema.ragged}

    @property
    def dense(self) -> Symbol:
        """Dense fields, (B, N)."""
        return self._graph.input("dense", (BATCH, len(self._schema.dense)))

    def rows(self) -> Rows:
        """Return the rows of the table."""
        return Rows(0, self._dim, self._dim)

    def of_field(self, rows: Rows, column: Column) -> Symbol:
        """Return the rows of a sparse field, (B, D)."""
        one = self._graph.op("Gather", self._sparse, np.array(column.place), axis=1, shape=(BATCH, self._dim))
        return self._cut(one, rows)

    def vectors(self, rows: Rows, ragged: Sequence[RaggedField]) -> Symbol | None:
        """Return the rows of all sparse fields and these ragged ones, (B, F, D); None without any."""
        parts = [self._sparse] if self._schema.sparse else []
        for field in ragged:
            pooled = self._graph.input(f"pooled.{field.name}", (BATCH, self._dim))
            parts.append(self._graph.unsqueezed(pooled, 1))
        if not parts:
            return None
        fields = len(self._schema.sparse) + len(ragged)
        joined = self._graph.op("Concat", *parts, axis=1, shape=(BATCH, fields, self._dim))
        return self._cut(joined, rows)

    def elements(self, rows: Rows, field: str) -> Symbol:
        """Return the rows of the elements of lists, (B, T, D)."""
        return self._cut(self._graph.input(f"elements.{field}", (BATCH, f"T.{field}", self._dim)), rows)

    def lengths(self, field: str) -> Symbol:
        """Return the lengths of lists, (B,)."""
        return self._graph.input(f"lengths.{field}", (BATCH,), np.int64)

    def keys(self, field: str) -> Symbol:
        """Return the keys of the elements of lists, (B, T)."""
        return self._graph.input(f"keys.{field}", (BATCH, f"T.{field}"), np.int64)

    def count(self, field: str) -> Symbol:
        """Return 0, 1, ... below the length of the longest list, (T,)."""
        whole = self._graph.input(f"elements.{field}", (BATCH, f"T.{field}", self._dim))
        return self._graph.kept(("count", field), lambda: self._graph.count_to(whole, 1))

    def mask(self, field: str) -> Symbol:
        """Return the mask that is True where a list has an element, (B, T)."""

        def make() -> Symbol:
            ends = self._graph.unsqueezed(self.lengths(field), 1)
            return self._graph.op("Less", self.count(field), ends, shape=(BATCH, f"T.{field}"))

        return self._graph.kept(("mask", field), make)

    @property
    def _sparse(self) -> Symbol:
        return self._graph.input("sparse", (BATCH, len(self._schema.sparse), self._dim))

    def _cut(self, x: Symbol, rows: Rows) -> Symbol:
        if rows.width == rows.whole:
            return x
        return self._graph.columns(x, rows.first, rows.first + rows.width)
