"""Layers of lists in ONNX, as in `rec_models.export.layers`; elements are padded, (B, T, ...)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pslib.errors import ConfigurationError
from rec_models.engine.tape import Var
from rec_models.export.graph import BATCH, LOWEST, Symbol, Value, shape_of
from rec_models.export.inputs import (
    Column,
    Elements,
    InOrder,
    Inputs,
    Last,
    Lists,
    Neighbours,
    OneStep,
    Pairs,
    Rows,
    Steps,
    Times,
)
from rec_models.export.layers import attended, product
from rec_models.export.tracer import Tracer, emits


@emits
def list_vectors(g: Tracer, rows: Var, batch: Inputs, field: str) -> Symbol:
    found: Any = rows.value
    return batch.elements(found, field)


@emits
def gather(g: Tracer, rows: Var, indices: object) -> Symbol:
    found: Any = rows.value
    if isinstance(found, Rows) and isinstance(indices, Column):
        return g.inputs.of_field(found, indices)
    if isinstance(found, Rows) and isinstance(indices, Elements):
        return g.inputs.elements(found, indices.field)
    if isinstance(found, Symbol) and isinstance(indices, InOrder):
        return found
    if isinstance(found, Symbol) and isinstance(indices, Last):
        return _last(g, found, indices.field)
    if isinstance(found, np.ndarray) and isinstance(indices, Times):
        steps = g.inputs.count(indices.field)
        return g.op("Gather", rows, steps, axis=0, shape=(f"T.{indices.field}", found.shape[1]))
    raise ConfigurationError(f"to onnx: gather of {type(indices).__name__} has no form in ONNX")


def _last(g: Tracer, x: Symbol, field: str) -> Symbol:
    """Return the last element of each list, (B, D); of an empty one the first of its padding."""
    lengths = g.op("Max", g.op("Sub", g.inputs.lengths(field), np.array(1)), np.array(0))
    places = g.unsqueezed(lengths, 1)
    return g.op("GatherND", x, places, batch_dims=1, shape=(BATCH, x.shape[-1]))


def _where_listed(g: Tracer, x: Value, field: str, other: float = 0.0) -> Symbol:
    """Replace what is behind the ends of lists, in (B, T) or (B, T, N)."""
    mask = g.inputs.mask(field)
    if len(shape_of(x)) == 3:
        mask = g.unsqueezed(mask, 2)
    return g.op("Where", mask, x, other, shape=shape_of(x))


# --- one vector a list


@emits
def facing(g: Tracer, h: Var, t: Var, offsets: Lists) -> Symbol:
    size = g.op("Shape", h, shape=(3,))
    of_list = g.op("Expand", g.unsqueezed(t, 1), size, shape=shape_of(h))
    parts: list[Value] = [h, of_list, g.op("Sub", h, of_list), g.op("Mul", h, of_list)]
    shape = (*shape_of(h)[:2], 4 * int(shape_of(h)[2]))
    return g.op("Concat", *parts, axis=-1, shape=shape)


@emits
def list_softmax(g: Tracer, scores: Var, offsets: Lists) -> Symbol:
    listed = _where_listed(g, scores, offsets.field, float(LOWEST))
    return _where_listed(g, g.op("Softmax", listed, axis=1), offsets.field)


@emits
def weighted_sum(g: Tracer, weights: Var, h: Var, offsets: Lists) -> Symbol:
    a = g.unsqueezed(_where_listed(g, weights, offsets.field), 2)
    return g.total(g.op("Mul", h, a), [1], (BATCH, shape_of(h)[2]))


@emits
def list_max(g: Tracer, x: Var, offsets: Lists) -> Symbol:
    listed = _where_listed(g, x, offsets.field, float(LOWEST))
    highest = g.op("ReduceMax", listed, np.array([1]), keepdims=0, shape=(BATCH, shape_of(x)[2]))
    return where_filled(g, highest, offsets.field)


def where_filled(g: Tracer, x: Value, field: str) -> Symbol:
    """Return zeros for empty lists, in (B, D)."""
    filled = g.op("Greater", g.unsqueezed(g.inputs.lengths(field), 1), np.array(0))
    return g.op("Where", filled, x, 0.0, shape=shape_of(x))


@emits
def windows(g: Tracer, x: Var, offsets: Lists, size: int) -> Symbol:
    before = (size - 1) // 2
    listed = _where_listed(g, x, offsets.field)
    ends = np.array([0, before, 0, 0, size - 1 - before, 0])
    wide = g.op("Pad", listed, ends)
    count = g.dimension(listed, 1)
    shifted = []
    for shift in range(size):
        stop = g.op("Add", count, np.array([shift]))
        shifted.append(g.op("Slice", wide, np.array([shift]), stop, np.array([1]), shape=shape_of(x)))
    shape = (*shape_of(x)[:2], size * int(shape_of(x)[2]))
    return g.op("Concat", *shifted, axis=-1, shape=shape)


# --- a vector an element


@emits
def gru(
    g: Tracer, x: Var, steps: Steps | OneStep, weights: Var, bias: Var, first: Var | None = None
) -> Symbol:
    """ONNX has the gates z, r, n, and multiplies its input by a matrix: here one that orders the gates."""
    H = bias.value.size
    shape = (*shape_of(x)[:2], H)
    order = np.concatenate([np.arange(H, 2 * H), np.arange(H), np.arange(2 * H, 3 * H)])
    inputs = np.eye(3 * H, dtype=np.float32)[order][None]
    recurrent = np.ascontiguousarray(weights.value.T[order])[None]
    biases = np.concatenate([np.zeros(5 * H, np.float32), bias.value])[None]
    together: dict[str, Any] = {"hidden_size": H, "linear_before_reset": 1}
    if isinstance(steps, OneStep):
        assert first is not None
        one = g.op("Reshape", x, np.array([1, -1, 3 * H]), shape=(1, "N", 3 * H))
        before = g.op("Reshape", first, np.array([1, -1, H]), shape=(1, "N", H))
        wanted: list[Any] = [None, (1, "N", H)]
        (last,) = g.op_many("GRU", one, inputs, recurrent, biases, None, before, shapes=wanted, **together)
        return g.op("Reshape", last, g.op("Shape", first, shape=(3,)), shape=shape)
    by_step = g.op("Transpose", x, perm=[1, 0, 2], shape=(shape[1], BATCH, 3 * H))
    wanted = [(shape[1], 1, BATCH, H)]
    (states,) = g.op_many("GRU", by_step, inputs, recurrent, biases, shapes=wanted, **together)
    states = g.op("Squeeze", states, np.array([1]), shape=(shape[1], BATCH, H))
    return g.op("Transpose", states, perm=[1, 0, 2], shape=shape)


@emits
def prefix_mean(g: Tracer, x: Var, steps: Steps) -> Symbol:
    counts = g.op("Cast", g.op("Add", g.inputs.count(steps.field), np.array(1)), to=1)
    return g.op("Div", g.op("CumSum", x, np.array(1)), g.unsqueezed(counts, 1))


@emits
def prefix_attention(g: Tracer, keys: Var, queries: Var, values: Var, q: Var, pairs: Pairs) -> Symbol:
    _, T, A = shape_of(keys)
    if pairs.of_last:
        gates = g.op("Sigmoid", g.op("Add", keys, g.unsqueezed(queries, 1), shape=(BATCH, T, A)))
        alpha = _where_listed(g, g.op("MatMul", gates, q, shape=(BATCH, T)), pairs.field)
        found = product(g, g.unsqueezed(alpha, 1), values)
        return g.op("Squeeze", found, np.array([1]), shape=(BATCH, shape_of(values)[2]))
    both = g.op("Add", g.unsqueezed(keys, 1), g.unsqueezed(queries, 2), shape=(BATCH, T, T, A))
    alpha = g.op("MatMul", g.op("Sigmoid", both), q, shape=(BATCH, T, T))
    alpha = g.op("Where", _earlier(g, pairs.field), alpha, 0.0, shape=(BATCH, T, T))
    return product(g, alpha, values)


def _earlier(g: Tracer, field: str) -> Symbol:
    """Return for each element which ones it follows or is, (T, T)."""
    count, T = g.inputs.count(field), f"T.{field}"
    return g.op("LessOrEqual", g.unsqueezed(count, 0), g.unsqueezed(count, 1), shape=(T, T))


@emits
def causal_attention(g: Tracer, query: Var, key: Var, value: Var, steps: Steps, heads: int) -> Symbol:
    scaled = g.op("Mul", query, (int(shape_of(query)[-1]) / heads) ** -0.5)
    return attended(g, scaled, key, value, heads, _earlier(g, steps.field))


@emits
def edge_mean(g: Tracer, x: Var, sources: Neighbours, targets: Neighbours) -> Symbol:
    """Mean over the neighbours of all elements with an element's key, each of which is its node."""
    field, shape = sources.field, shape_of(x)
    keys, mask, T = g.inputs.keys(field), g.inputs.mask(field), f"T.{field}"
    same = g.op("Equal", g.unsqueezed(keys, 2), g.unsqueezed(keys, 1), shape=(BATCH, T, T))
    if targets.later:  # of s - 1 -> s, at the node of s: what stands before
        shifted = g.op("Pad", x, np.array([0, 1, 0, 0, -1, 0]))
        follows = g.op("Greater", g.inputs.count(field), np.array(0))
        there = g.op("And", mask, follows)
    else:
        shifted = g.op("Pad", x, np.array([0, -1, 0, 0, 1, 0]))
        ends = g.unsqueezed(g.op("Sub", g.inputs.lengths(field), np.array(1)), 1)
        there = g.op("Less", g.inputs.count(field), ends, shape=(BATCH, T))
    edges = g.op("Cast", g.op("And", same, g.unsqueezed(there, 1)), to=1)
    counts = g.op("Max", g.total(edges, [2], (BATCH, T, 1), keepdims=True), 1.0)
    return g.op("Div", product(g, edges, shifted), counts, shape=shape)
