"""Layers of fields and numbers in ONNX: each a function of the layer's name and arguments.

The first argument is the `Tracer` in place of a tape; equations and shapes are those of the layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pslib.schema import Schema
from rec_models.engine.tape import Array, Var
from rec_models.export.graph import BATCH, LOWEST, Symbol, Value, shape_of, symbol_of, value_of
from rec_models.export.inputs import Inputs, Rows
from rec_models.export.tracer import Tracer, emits
from rec_models.layers.interactions import matrices_of, pairs_of
from rec_models.layers.normalization import EPSILON

# --- activations and arithmetic


@emits
def relu(g: Tracer, x: Var) -> Symbol:
    return g.op("Relu", x)


@emits
def sigmoid(g: Tracer, x: Value) -> Symbol:
    return g.op("Sigmoid", x)


@emits
def tanh(g: Tracer, x: Var) -> Symbol:
    return g.op("Tanh", x)


@emits
def prelu(g: Tracer, x: Var, alpha: Var) -> Symbol:
    return g.op("PRelu", x, alpha)


@emits
def dice(g: Tracer, x: Var, alpha: Var, mean: Var, inv_std: Var) -> Symbol:
    p = sigmoid(g, g.op("Mul", g.op("Sub", x, mean), inv_std))
    below = g.op("Mul", g.op("Sub", 1.0, p), alpha)
    return g.op("Mul", x, g.op("Add", p, below))


@emits
def add(g: Tracer, first: Value, *others: Value) -> Value:
    for term in others:
        wide = max(first, term, key=lambda one: isinstance(value_of(one), Symbol))
        first = g.op("Add", first, term, shape=shape_of(wide))
    return first


@emits
def multiply(g: Tracer, x: Var, gate: Var, factor: float = 1.0) -> Symbol:
    product = g.op("Mul", x, gate, shape=shape_of(x))
    return product if factor == 1 else g.op("Mul", product, factor)


@emits
def row_dot(g: Tracer, a: Var, b: Var) -> Symbol:
    return g.total(g.op("Mul", a, b), [1], (BATCH,))


@emits
def sum_vectors(g: Tracer, vectors: Var) -> Symbol:
    return g.total(vectors, [2], shape_of(vectors)[:2])


@emits
def mixture(g: Tracer, scores: Var, *experts: Var) -> Symbol:
    gate = g.op("Softmax", scores, axis=-1)
    weighted = [g.op("Mul", one, g.columns(gate, i, i + 1)) for i, one in enumerate(experts)]
    return g.op("Sum", *weighted)


@emits
def logit_of_product(g: Tracer, a: Var, b: Var) -> Symbol:
    left, right = g.op("Neg", a), g.op("Neg", b)
    return g.op("Neg", _log_add(g, _log_add(g, left, right), g.op("Add", left, right)))


def _log_add(g: Tracer, a: Symbol, b: Symbol) -> Symbol:
    """``log(exp(a) + exp(b))``, of the larger one and the distance to it."""
    beyond = g.op("Neg", g.op("Abs", g.op("Sub", a, b)))
    return g.op("Add", g.op("Max", a, b), g.op("Softplus", beyond))


# --- normalisation


@emits
def batch_norm(g: Tracer, x: Var, scale: Var, shift: Var, mean: Var, inv_std: Var) -> Symbol:
    factor = g.op("Mul", inv_std, scale, shape=shape_of(scale))
    return g.op("Add", g.op("Mul", g.op("Sub", x, mean), factor), shift)


@emits
def layer_norm(g: Tracer, x: Var, scale: Var, shift: Var) -> Symbol:
    return g.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)


@emits
def normalize(g: Tracer, x: Var, length: float = 1.0) -> Symbol:
    norms = g.op("ReduceL2", x, np.array([1]), keepdims=1, shape=(BATCH, 1))
    divisors = g.op("Where", g.op("Greater", norms, 0.0), norms, 1.0)
    unit = g.op("Div", x, divisors)
    return unit if length == 1 else g.op("Mul", unit, length)


# --- products with matrices


@emits
def product(g: Tracer, x: Value, weights: Value) -> Symbol:
    return g.op("MatMul", x, weights, shape=(*shape_of(x)[:-1], shape_of(weights)[-1]))


@emits
def linear(g: Tracer, x: Var, weights: Var, bias: Var) -> Symbol:
    return g.op("Add", product(g, x, weights), bias)


@emits
def linear_relu(g: Tracer, x: Var, weights: Var, bias: Var) -> Symbol:
    return g.op("Relu", linear(g, x, weights, bias))


@emits
def relu_head(g: Tracer, x: Var, weights: Var, bias: Var, out_weights: Var, out_bias: Var) -> Symbol:
    a = linear_relu(g, x, weights, bias)
    return g.reshaped(g.op("Add", product(g, a, out_weights), out_bias), ())


@emits
def dot(g: Tracer, x: Symbol, weights: Var) -> Symbol:
    return g.op("MatMul", x, weights, shape=(BATCH,))


@emits
def dense_vectors(g: Tracer, x: Symbol, weights: Var) -> Symbol:
    return g.op("Mul", g.unsqueezed(x, 2), weights, shape=(BATCH, *shape_of(weights)))


# --- fields


@emits
def embedding(g: Tracer, rows: Var, batch: Inputs, schema: Schema, beside: int = 0) -> Symbol:
    vectors = batch.vectors(_rows(rows), schema.ragged)
    return vectors if vectors is not None else g.zeros(0, _rows(rows).width)


@emits
def first_order(g: Tracer, weights: Var, batch: Inputs, schema: Schema) -> Symbol:
    vectors = batch.vectors(_rows(weights), schema.ragged)
    return g.zeros() if vectors is None else g.total(vectors, [1, 2], (BATCH,))


def _rows(rows: Var) -> Rows:
    found: Any = rows.value
    if not isinstance(found, Rows):
        raise TypeError(f"{type(found).__name__} in place of rows of the table")
    return found


# --- shapes


@emits
def concat(g: Tracer, *inputs: Var) -> Symbol:
    flat = []
    for one in map(symbol_of, inputs):
        width = math.prod(map(int, one.shape[one.leading :]))
        if width or len(inputs) == 1:
            flat.append(one if len(one.shape) == one.leading + 1 else g.reshaped(one, (width,)))
    shape = (*flat[0].shape[:-1], sum(int(one.shape[-1]) for one in flat))
    return flat[0] if len(flat) == 1 else g.op("Concat", *flat, axis=-1, shape=shape)


@emits
def split(g: Tracer, rows: Var, widths: Sequence[int]) -> tuple[Any, ...]:
    ends = np.cumsum(widths).tolist()
    pieces = [(end - width, width) for end, width in zip(ends, widths, strict=True)]
    found: Any = rows.value
    if isinstance(found, Rows):
        return tuple(found.columns(first, width) for first, width in pieces)
    return tuple(g.columns(rows, first, first + width) for first, width in pieces)


@emits
def reshape(g: Tracer, x: Var, shape: tuple[int, ...]) -> Symbol:
    return g.reshaped(symbol_of(x), shape)


@emits
def take_fields(g: Tracer, vectors: Var, fields: Sequence[int]) -> Symbol:
    return fields_of(g, vectors, np.array(list(fields)))


def fields_of(g: Tracer, vectors: Value, fields: Array) -> Symbol:
    """Select the vectors of some fields, (B, len(fields), D)."""
    return g.op("Gather", vectors, fields, axis=1, shape=(BATCH, fields.size, shape_of(vectors)[2]))


# --- interactions


@emits
def fm(g: Tracer, vectors: Var) -> Symbol:
    return g.total(bi_interaction(g, vectors), [1], (BATCH,))


@emits
def bi_interaction(g: Tracer, vectors: Var) -> Symbol:
    shape = (BATCH, shape_of(vectors)[2])
    total = g.total(vectors, [1], shape)
    squares = g.total(g.op("Mul", vectors, vectors), [1], shape)
    return g.op("Mul", g.op("Sub", g.op("Mul", total, total), squares), 0.5)


@emits
def inner_products(g: Tracer, vectors: Var) -> Symbol:
    _, fields, dim = shape_of(vectors)
    left, right = pairs_of(int(fields))
    other = g.op("Transpose", vectors, perm=[0, 2, 1], shape=(BATCH, dim, fields))
    every = g.reshaped(product(g, vectors, other), (int(fields) ** 2,))
    places = left * int(fields) + right
    return g.op("Gather", every, places, axis=1, shape=(BATCH, places.size))


@emits
def bilinear_pairs(g: Tracer, vectors: Var, weights: Var, kind: str) -> Symbol:
    _, fields, dim = shape_of(vectors)
    left, right = pairs_of(int(fields))
    between = g.op(
        "Gather", weights, matrices_of(kind, int(fields)), axis=0, shape=(left.size, int(dim), int(dim))
    )
    v_i = g.unsqueezed(fields_of(g, vectors, left), 2)  # (B, P, 1, D)
    u = g.op("MatMul", v_i, between)
    return g.op("Mul", g.reshaped(u, (left.size, int(dim))), fields_of(g, vectors, right))


@emits
def bilinear_fusion(g: Tracer, x: Var, y: Var, weights: Var) -> Symbol:
    heads, m, n = map(int, shape_of(weights))
    x_h = g.unsqueezed(reshape(g, x, (heads, m)), 2)
    u = g.op("MatMul", x_h, weights, shape=(BATCH, heads, 1, n))
    products = g.op("Mul", g.reshaped(u, (heads, n)), reshape(g, y, (heads, n)))
    return g.total(products, [1, 2], (BATCH,))


@emits
def cross(g: Tracer, x0: Var, x: Var, weights: Var, bias: Var) -> Symbol:
    heights = g.unsqueezed(g.op("MatMul", x, weights, shape=(BATCH,)), 1)
    return g.op("Add", g.op("Add", g.op("Mul", x0, heights), bias), x)


@emits
def cross_matrix(g: Tracer, x0: Var, x: Var, weights: Var, bias: Var) -> Symbol:
    return g.op("Add", g.op("Mul", x0, linear(g, x, weights, bias)), x)


@emits
def compress(g: Tracer, x: Var, x0: Var, weights: Var) -> Symbol:
    (_, heads, dim), fields = shape_of(x), shape_of(x0)[1]
    left = g.op("Transpose", x, perm=[0, 2, 1], shape=(BATCH, dim, heads))
    right = g.op("Transpose", x0, perm=[0, 2, 1], shape=(BATCH, dim, fields))
    products = g.op("Mul", g.unsqueezed(left, 3), g.unsqueezed(right, 2), shape=(BATCH, dim, heads, fields))
    found = product(g, g.reshaped(products, (int(dim), int(heads) * int(fields))), weights)
    return g.op("Transpose", found, perm=[0, 2, 1], shape=(BATCH, shape_of(weights)[1], dim))


@emits
def squeeze_excite(g: Tracer, vectors: Var, squeeze: Var, excite: Var) -> Symbol:
    z = g.op("ReduceMean", vectors, np.array([2]), keepdims=0, shape=shape_of(vectors)[:2])
    h = g.op("Relu", product(g, z, squeeze))
    a = g.op("Relu", product(g, h, excite))
    return g.op("Mul", vectors, g.unsqueezed(a, 2))


@emits
def attention(g: Tracer, query: Var, key: Var, value: Var, heads: int) -> Symbol:
    return attended(g, query, key, value, heads)


def attended(
    g: Tracer, query: Value, key: Value, value: Value, heads: int, mask: Value | None = None
) -> Symbol:
    """Multi-head attention of (B, F, A); ``mask`` is True, (F, F), where it attends."""
    shape = shape_of(query)
    width = int(shape[-1])

    def by_head(x: Value) -> Symbol:
        split = np.array([0, 0, heads, width // heads])
        apart = g.op("Reshape", x, split, shape=(*shape[:2], heads, width // heads))
        return g.op("Transpose", apart, perm=[0, 2, 1, 3], shape=(BATCH, heads, shape[1], width // heads))

    q, k, v = by_head(query), by_head(key), by_head(value)
    keys = g.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = g.op("MatMul", q, keys, shape=(BATCH, heads, shape[1], shape[1]))
    if mask is not None:
        scores = g.op("Where", mask, scores, float(LOWEST), shape=scores.shape)
    found = g.op("MatMul", g.op("Softmax", scores, axis=-1), v, shape=q.shape)
    together = g.op("Transpose", found, perm=[0, 2, 1, 3])
    return g.op("Reshape", together, np.array([0, 0, width]), shape=shape)
