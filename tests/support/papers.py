"""Every model's logit of one example, read plainly from its paper: loops over fields, pairs and layers.

A model's entry in `PAPERS` takes the vectors of an example's fields, its dense fields, both side by side,
and the dense parameters; one in `SEQUENCE_PAPERS` the vectors of the elements of its ragged fields as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np

from rec_models import Model
from rec_models.engine.tape import Array

__all__ = ["PAPERS", "by_the_paper"]

Dense = Mapping[str, Array]
Paper = Callable[[Model, Array, Array, Array, Dense], float]


def by_the_paper(
    name: str, model: Model, joined: Array, x: Array, dense: Dense, lists: Mapping[str, Array]
) -> float:
    """Logit of one example from (F, D) rows or pooled rows of its fields, all parts side by side.

    ``lists`` has the rows of each ragged field's elements.
    """
    if name in SEQUENCE_PAPERS:
        return SEQUENCE_PAPERS[name](model, joined, lists, x, dense)
    first = model.parts()[0].name == "w"
    w, v = (joined[:, 0], joined[:, 1:]) if first else (np.zeros(len(joined)), joined)
    linear = float(w.sum() + (x @ dense["dense.w"] if "dense.w" in dense else 0))
    return linear + PAPERS[name](model, v, x, np.concatenate([v.ravel(), x]), dense)


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def pairs(v: Array) -> list[tuple[Array, Array]]:
    return list(combinations(v, 2))


def layers(a: Array, dense: Dense, name: str) -> Array:
    """Hidden layers; with batch norm as a prediction has it."""
    number = 0
    while f"{name}.{number}.w" in dense:
        here = f"{name}.{number}"
        a = a @ dense[f"{here}.w"]
        if f"{here}.scale" in dense:
            a = (a - dense[f"{here}.mean"]) * dense[f"{here}.inv_std"] * dense[f"{here}.scale"]
        a = np.maximum(a + dense[f"{here}.b"], 0)
        number += 1
    return a


def mlp(a: Array, dense: Dense) -> float:
    return float((layers(a, dense, "mlp") @ dense["mlp.out.w"] + dense["mlp.out.b"])[0])


def out(a: Array, dense: Dense) -> float:
    return float((a @ dense["out.w"] + dense["out.b"])[0])


def dcn(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    a = x0
    for layer in range(model.cross_layers):  # type: ignore[attr-defined]
        w, b = dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"]
        a = x0 * (a @ w) + b + a
    return out(np.concatenate([a, layers(x0, dense, "deep")]), dense)


def dcnv2(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    a = x0
    for layer in range(model.cross_layers):  # type: ignore[attr-defined]
        w, b = dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"]
        a = x0 * (a @ w + b) + a
    if model.stacked:  # type: ignore[attr-defined]
        return out(layers(a, dense, "deep"), dense)
    return out(np.concatenate([a, layers(x0, dense, "deep")]), dense)


def xdeepfm(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    before, pooled = v, []
    for layer, vectors in enumerate(model.cin):  # type: ignore[attr-defined]
        w = dense[f"cin.{layer}.w"].reshape(len(before), len(v), vectors)
        before = np.array(
            [
                sum(w[h, f, m] * before[h] * v[f] for h in range(len(before)) for f in range(len(v)))
                for m in range(vectors)
            ]
        )
        pooled += list(before.sum(axis=1))
    return float((np.array(pooled) @ dense["cin.out.w"])[0]) + mlp(x0, dense)


def autoint(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    e = np.concatenate([v, x[:, None] * dense["dense.v"]])
    for layer in range(model.attention_layers):  # type: ignore[attr-defined]
        q, k, u = (e @ dense[f"attention.{layer}.{one}"] for one in ("query", "key", "value"))
        wide = e.shape[1] != model.attention_dim  # type: ignore[attr-defined]
        r = e @ dense[f"attention.{layer}.residual"] if wide else e
        size = model.attention_dim // model.heads  # type: ignore[attr-defined]
        mixed = np.zeros_like(r)
        for start in range(0, q.shape[1], size):
            head = slice(start, start + size)
            for m in range(len(e)):
                weights = np.exp([q[m, head] @ k[j, head] for j in range(len(e))])
                mixed[m, head] = sum(a * u[j, head] for j, a in enumerate(weights / weights.sum()))
        e = np.maximum(mixed + r, 0)
    return out(e.ravel(), dense) + (mlp(x0, dense) if model.hidden else 0)  # type: ignore[attr-defined]


def fibinet(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    z = v.mean(axis=1)
    weights = np.maximum(np.maximum(z @ dense["squeeze.w"], 0) @ dense["excite.w"], 0)
    matrices = dense["bilinear.w"]
    numbers = {
        "all": [0 for _ in combinations(range(len(v)), 2)],
        "each": [i for i, _ in combinations(range(len(v)), 2)],
        "interaction": list(range(len(matrices))),
    }[model.bilinear]  # type: ignore[attr-defined]
    joined = [
        (left @ matrices[number]) * right
        for vectors in (v, v * weights[:, None])
        for number, (left, right) in zip(numbers, pairs(vectors), strict=True)
    ]
    return mlp(np.concatenate([*joined, x]), dense)


def dlrm(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    z = layers(x, dense, "bottom")
    if model.interaction == "cat":  # type: ignore[attr-defined]
        return mlp(np.concatenate([z, v.ravel()]), dense)
    return mlp(np.concatenate([z, [a @ b for a, b in pairs(np.concatenate([z[None], v]))]]), dense)


def finalmlp(model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> float:
    names = [*(f.name for f in model.schema.sparse), *(f.name for f in model.schema.ragged)]
    outputs = []
    for stream in (1, 2):
        context = getattr(model, f"context_{stream}")
        h = x0
        if model.gated:  # type: ignore[attr-defined]
            name = f"gate_{stream}"
            read = (
                v[[names.index(one) for one in context]].ravel() if context else dense[f"{name}.context"][0]
            )
            gate = sigmoid(layers(read, dense, name) @ dense[f"{name}.out.w"] + dense[f"{name}.out.b"])
            h = 2 * gate * x0
        outputs.append(layers(h, dense, f"mlp_{stream}"))
    o1, o2 = outputs
    y = float((o1 @ dense["fusion.1.w"] + o2 @ dense["fusion.2.w"] + dense["fusion.b"])[0])
    heads = dense["fusion.w"]
    for a, w, b in zip(np.split(o1, len(heads)), heads, np.split(o2, len(heads)), strict=True):
        y += a @ w @ b
    return y


def sloped(a: Array, dense: Dense, name: str) -> Array:
    """Hidden layers with PReLU or Dice, the latter as a prediction has it."""
    number = 0
    while (here := f"{name}.{number}") + ".w" in dense:
        s, alpha = a @ dense[f"{here}.w"] + dense[f"{here}.b"], dense[f"{here}.alpha"]
        p = (s > 0).astype(s.dtype)
        if f"{here}.mean" in dense:
            p = sigmoid((s - dense[f"{here}.mean"]) * dense[f"{here}.inv_std"])
        a, number = p * s + (1 - p) * alpha * s, number + 1
    return a


def din(model: Model, v: Array, lists: Mapping[str, Array], x: Array, dense: Dense) -> float:
    target, unit = v[1], "attention.viewed"
    scores = []
    for e in lists["viewed"]:
        seen = np.concatenate([e, target, e - target, e * target])
        a = sloped(seen, dense, unit) @ dense[f"{unit}.out.w"] + dense.get(f"{unit}.out.b", 0)
        scores.append(float(a[0]))
    weights = np.array(scores)
    if model.softmax:  # type: ignore[attr-defined]
        weights = np.exp(weights) / np.exp(weights).sum()
    interest = sum((a * e for a, e in zip(weights, lists["viewed"], strict=True)), np.zeros(v.shape[1]))
    joined = np.concatenate([v[:-1].ravel(), interest, x])  # the last field is the sequence, pooled
    return float((sloped(joined, dense, "mlp") @ dense["mlp.out.w"] + dense["mlp.out.b"])[0])


def fm_pairs(v: Array) -> float:
    return float(sum(a @ b for a, b in pairs(v)))


PAPERS: dict[str, Paper] = {
    "lr": lambda model, v, x, x0, dense: float(dense["bias"][0]),
    "fm": lambda model, v, x, x0, dense: float(dense["bias"][0]) + fm_pairs(v),
    "nfm": lambda model, v, x, x0, dense: mlp(sum((a * b for a, b in pairs(v)), np.zeros(v.shape[1])), dense),
    "wide_deep": lambda model, v, x, x0, dense: mlp(x0, dense),
    "dnn": lambda model, v, x, x0, dense: mlp(x0, dense),
    "pnn": lambda model, v, x, x0, dense: mlp(
        np.concatenate([v.ravel(), [a @ b for a, b in pairs(v)], x]), dense
    ),
    "deepfm": lambda model, v, x, x0, dense: fm_pairs(v) + mlp(x0, dense),
    "dcn": dcn,
    "dcnv2": dcnv2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "fibinet": fibinet,
    "dlrm": dlrm,
    "finalmlp": finalmlp,
}
"""By the name of its file."""

SEQUENCE_PAPERS: dict[str, Callable[[Model, Array, Mapping[str, Array], Array, Dense], float]] = {"din": din}
"""Likewise, for models that see each element of a list."""
