"""Logit of one example by each model, read plainly from its paper: loops over fields, pairs and layers.

Functions take arrays of NumPy, or tensors of PyTorch for gradients by its autograd; ``xp`` is the module. A
model's entry in `PAPERS` takes the vectors of an example's fields, its dense fields, both side by side, and
the dense parameters; one in `SEQUENCE_PAPERS` also the vectors of the elements of its ragged fields; one in
`TASK_PAPERS` gives the probabilities of all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from types import ModuleType
from typing import Any

from pslib.batch import Batch
from rec_models import Model

__all__ = ["PAPERS", "TASK_PAPERS", "by_the_paper", "fields_of"]

Array = Any
"""An array of NumPy or PyTorch."""
Dense = Mapping[str, Array]
Paper = Callable[[ModuleType, Model, Array, Array, Array, Dense], Array]
WITHOUT_TORCH = (
    "PyTorch is a second reference and no dependency of pslib (1 GB); the same mathematics is checked "
    "everywhere against NumPy definitions and finite differences"
)


def fields_of(
    xp: ModuleType, model: Model, batch: Batch, b: int, rows: Array
) -> tuple[Array, dict[str, Array]]:
    """Rows (F, D) of the fields of example b, pooled where ragged, and of each ragged field's elements."""
    elements = {}
    for name, ragged in batch.ragged.items():
        elements[name] = rows[ragged.values[ragged.offsets[b] : ragged.offsets[b + 1]].tolist()]
    pooled = [rows[place] for place in batch.sparse[b].tolist()]
    for field in model.schema.ragged:
        some = elements[field.name]
        pooled.append(some.sum(axis=0) / (max(1, len(some)) if field.pooling == "mean" else 1))
    return xp.stack(pooled), elements


def by_the_paper(
    xp: ModuleType, name: str, model: Model, batch: Batch, b: int, rows: Array, x: Array, dense: Dense
) -> Array:
    """Logit of example b, from the rows of the batch's keys, its dense fields and the dense parameters."""
    fields, elements = fields_of(xp, model, batch, b, rows)
    if name in SEQUENCE_PAPERS:
        return SEQUENCE_PAPERS[name](xp, model, fields, elements, x, dense)
    first = model.parts()[0].name == "w"
    v = fields[:, 1:] if first else fields
    logit = PAPERS[name](xp, model, v, x, xp.concatenate([v.ravel(), x]), dense)
    if first:
        logit = logit + fields[:, 0].sum()
    return logit + x @ dense["dense.w"] if "dense.w" in dense else logit


def sigmoid(xp: ModuleType, z: Array) -> Array:
    return 1 / (1 + xp.exp(-z))


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
        a = (a + dense[f"{here}.b"]).clip(0)
        number += 1
    return a


def mlp(a: Array, dense: Dense) -> Array:
    return through(a, dense, "mlp")[0]


def through(a: Array, dense: Dense, name: str) -> Array:
    """Hidden layers and a linear output."""
    return layers(a, dense, name) @ dense[f"{name}.out.w"] + dense[f"{name}.out.b"]


def out(a: Array, dense: Dense) -> Array:
    return (a @ dense["out.w"] + dense["out.b"])[0]


def dcn(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    a = x0
    for layer in range(model.cross_layers):  # type: ignore[attr-defined]
        w, b = dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"]
        a = x0 * (a @ w) + b + a
    return out(xp.concatenate([a, layers(x0, dense, "deep")]), dense)


def dcnv2(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    a = x0
    for layer in range(model.cross_layers):  # type: ignore[attr-defined]
        w, b = dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"]
        a = x0 * (a @ w + b) + a
    if model.stacked:  # type: ignore[attr-defined]
        return out(layers(a, dense, "deep"), dense)
    return out(xp.concatenate([a, layers(x0, dense, "deep")]), dense)


def xdeepfm(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    before, pooled = v, []
    for layer, vectors in enumerate(model.cin):  # type: ignore[attr-defined]
        w = dense[f"cin.{layer}.w"].reshape(len(before), len(v), vectors)
        before = xp.stack(
            [
                sum(w[h, f, m] * before[h] * v[f] for h in range(len(before)) for f in range(len(v)))
                for m in range(vectors)
            ]
        )
        pooled += list(before.sum(axis=1))
    return (xp.stack(pooled) @ dense["cin.out.w"])[0] + mlp(x0, dense)


def autoint(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    e = xp.concatenate([v, x[:, None] * dense["dense.v"]])
    for layer in range(model.attention_layers):  # type: ignore[attr-defined]
        q, k, u = (e @ dense[f"attention.{layer}.{one}"] for one in ("query", "key", "value"))
        wide = e.shape[1] != model.attention_dim  # type: ignore[attr-defined]
        r = e @ dense[f"attention.{layer}.residual"] if wide else e
        size = model.attention_dim // model.heads  # type: ignore[attr-defined]
        mixed = []
        for m in range(len(e)):
            heads = []
            for head in (slice(start, start + size) for start in range(0, q.shape[1], size)):
                scores = xp.stack([q[m, head] @ k[j, head] for j in range(len(e))])
                weights = xp.exp(scores - scores.max())
                heads.append(sum(a * u[j, head] for j, a in enumerate(weights / weights.sum())))
            mixed.append(xp.concatenate(heads))
        e = (xp.stack(mixed) + r).clip(0)
    return out(e.ravel(), dense) + (mlp(x0, dense) if model.hidden else 0)  # type: ignore[attr-defined]


def fibinet(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    z = v.mean(axis=1)
    weights = ((z @ dense["squeeze.w"]).clip(0) @ dense["excite.w"]).clip(0)
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
    return mlp(xp.concatenate([*joined, x]), dense)


def dlrm(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
    z = layers(x, dense, "bottom")
    if model.interaction == "cat":  # type: ignore[attr-defined]
        return mlp(xp.concatenate([z, v.ravel()]), dense)
    products = [a @ b for a, b in pairs(xp.concatenate([z[None], v]))]
    return mlp(xp.concatenate([z, xp.stack(products)]), dense)


def finalmlp(xp: ModuleType, model: Model, v: Array, x: Array, x0: Array, dense: Dense) -> Array:
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
            h = 2 * sigmoid(xp, through(read, dense, name)) * x0
        outputs.append(layers(h, dense, f"mlp_{stream}"))
    o1, o2 = outputs
    y = (o1 @ dense["fusion.1.w"] + o2 @ dense["fusion.2.w"] + dense["fusion.b"])[0]
    heads = dense["fusion.w"]
    slices = (o.reshape(len(heads), -1) for o in outputs)
    return y + sum(a @ w @ b for a, w, b in zip(next(slices), heads, next(slices), strict=True))


def sloped(xp: ModuleType, a: Array, dense: Dense, name: str) -> Array:
    """Hidden layers with PReLU or Dice, the latter as a prediction has it."""
    number = 0
    while (here := f"{name}.{number}") + ".w" in dense:
        s, alpha = a @ dense[f"{here}.w"] + dense[f"{here}.b"], dense[f"{here}.alpha"]
        p = (s > 0) * 1
        if f"{here}.mean" in dense:
            p = sigmoid(xp, (s - dense[f"{here}.mean"]) * dense[f"{here}.inv_std"])
        a, number = p * s + (1 - p) * alpha * s, number + 1
    return a


def din(xp: ModuleType, model: Model, v: Array, lists: Mapping[str, Array], x: Array, dense: Dense) -> Array:
    target, unit, interest = v[1], "attention.viewed", v[1] * 0
    if len(lists["viewed"]):
        scores = []
        for e in lists["viewed"]:
            seen = xp.concatenate([e, target, e - target, e * target])
            a = sloped(xp, seen, dense, unit) @ dense[f"{unit}.out.w"] + dense.get(f"{unit}.out.b", 0)
            scores.append(a[0])
        weights = xp.stack(scores)
        if model.softmax:  # type: ignore[attr-defined]
            weights = xp.exp(weights) / xp.exp(weights).sum()
        interest = weights @ lists["viewed"]
    joined = xp.concatenate([v[:-1].ravel(), interest, x])  # the last field is the sequence, pooled
    return (sloped(xp, joined, dense, "mlp") @ dense["mlp.out.w"] + dense["mlp.out.b"])[0]


def esmm(xp: ModuleType, model: Model, x0: Array, dense: Dense) -> Array:
    ctr, cvr = (sigmoid(xp, through(x0, dense, tower)) for tower in ("ctr", "cvr"))
    return xp.concatenate([ctr, ctr * cvr])


def mmoe(xp: ModuleType, model: Model, x0: Array, dense: Dense) -> Array:
    experts = xp.stack([layers(x0, dense, f"expert.{i}") for i in range(model.experts)])  # type: ignore[attr-defined]
    tasks = []
    for k in range(len(model.schema.labels)):
        gate = xp.exp(x0 @ dense[f"gate.{k}.w"])
        tasks.append(sigmoid(xp, through(gate / gate.sum() @ experts, dense, f"task.{k}")))
    return xp.concatenate(tasks)


def fm_pairs(v: Array) -> Array:
    return sum(a @ b for a, b in pairs(v))


PAPERS: dict[str, Paper] = {
    "lr": lambda xp, model, v, x, x0, dense: dense["bias"][0],
    "fm": lambda xp, model, v, x, x0, dense: dense["bias"][0] + fm_pairs(v),
    "nfm": lambda xp, model, v, x, x0, dense: mlp(sum(a * b for a, b in pairs(v)), dense),
    "wide_deep": lambda xp, model, v, x, x0, dense: mlp(x0, dense),
    "dnn": lambda xp, model, v, x, x0, dense: mlp(x0, dense),
    "pnn": lambda xp, model, v, x, x0, dense: mlp(
        xp.concatenate([v.ravel(), xp.stack([a @ b for a, b in pairs(v)]), x]), dense
    ),
    "deepfm": lambda xp, model, v, x, x0, dense: fm_pairs(v) + mlp(x0, dense),
    "dcn": dcn,
    "dcnv2": dcnv2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "fibinet": fibinet,
    "dlrm": dlrm,
    "finalmlp": finalmlp,
}
"""By the name of its file."""

SEQUENCE_PAPERS: dict[str, Callable[[ModuleType, Model, Array, Mapping[str, Array], Array, Dense], Array]] = {
    "din": din
}
"""Likewise, for models that see each element of a list."""

TASK_PAPERS: dict[str, Callable[[ModuleType, Model, Array, Dense], Array]] = {"esmm": esmm, "mmoe": mmoe}
"""Probabilities (T,) of the tasks of one example, from its fields side by side."""
