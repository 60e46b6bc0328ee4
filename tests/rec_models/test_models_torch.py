"""Every model against a twin in PyTorch, forward and backward, where PyTorch is installed."""

from itertools import combinations

import numpy as np
import pytest

from rec_models import build
from tests.support.models.gradient_check import BATCH, SCHEMA, VARIANTS, random, variant_name

torch = pytest.importorskip(
    "torch",
    reason="PyTorch is the reference here and no dependency of pslib (1 GB); the same mathematics is checked "
    "everywhere against NumPy definitions and finite differences",
)
functional = torch.nn.functional
NAMES = [*(field.name for field in SCHEMA.sparse), *(field.name for field in SCHEMA.ragged)]
LEFT, RIGHT = (list(side) for side in zip(*combinations(range(len(NAMES)), 2), strict=True))


def twin_vectors(rows):
    """(B, F, D) field vectors by EmbeddingBag."""
    places = torch.from_numpy(BATCH.sparse.astype(np.int64))
    fields = [rows[places[:, f]] for f in range(places.shape[1])]
    for field in SCHEMA.ragged:
        ragged = BATCH.ragged[field.name]
        values, offsets = torch.from_numpy(ragged.values.astype(np.int64)), torch.from_numpy(ragged.offsets)
        fields.append(
            functional.embedding_bag(values, rows, offsets, mode=field.pooling, include_last_offset=True)
        )
    return torch.stack(fields, dim=1)


def layers(a, dense, name):
    number = 0
    while (here := f"{name}.{number}") + ".w" in dense:
        w, b = dense[f"{here}.w"], dense[f"{here}.b"]
        if f"{here}.scale" in dense:
            z = functional.batch_norm(a @ w, None, None, dense[f"{here}.scale"], b, training=True)
        else:
            z = functional.linear(a, w.T, b)
        a, number = torch.relu(z), number + 1
    return a


def mlp(a, dense):
    return (layers(a, dense, "mlp") @ dense["mlp.out.w"] + dense["mlp.out.b"]).flatten()


def dcn(model, v, x, x0, dense):
    a = x0
    for layer in range(model.cross_layers):
        w, b = dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"]
        a = x0 * (a @ w)[:, None] + b + a
    return (torch.cat([a, layers(x0, dense, "deep")], 1) @ dense["out.w"] + dense["out.b"]).flatten()


def dcnv2(model, v, x, x0, dense):
    a = x0
    for layer in range(model.cross_layers):
        a = x0 * functional.linear(a, dense[f"cross.{layer}.w"].T, dense[f"cross.{layer}.b"]) + a
    deep = layers(a if model.stacked else x0, dense, "deep")
    last = deep if model.stacked else torch.cat([a, deep], 1)
    return (last @ dense["out.w"] + dense["out.b"]).flatten()


def xdeepfm(model, v, x, x0, dense):
    before, pooled = v, []
    for layer, vectors in enumerate(model.cin):
        outer = torch.einsum("bhd,bfd->bhfd", before, v).flatten(1, 2)
        before = functional.conv1d(outer, dense[f"cin.{layer}.w"].T[:, :, None])
        pooled.append(before.sum(2))
        assert before.shape[1] == vectors
    return (torch.cat(pooled, 1) @ dense["cin.out.w"]).flatten() + mlp(x0, dense)


def autoint(model, v, x, x0, dense):
    e = torch.cat([v, x[:, :, None] * dense["dense.v"]], 1)
    for layer in range(model.attention_layers):
        q, k, u = (e @ dense[f"attention.{layer}.{one}"] for one in ("query", "key", "value"))
        r = e @ dense[f"attention.{layer}.residual"] if e.shape[2] != model.attention_dim else e
        q, k, u = (z.unflatten(2, (model.heads, -1)).transpose(1, 2) for z in (q, k, u))
        mixed = functional.scaled_dot_product_attention(q, k, u, scale=1.0)
        e = torch.relu(mixed.transpose(1, 2).flatten(2) + r)
    y = (e.flatten(1) @ dense["out.w"] + dense["out.b"]).flatten()
    return y + mlp(x0, dense) if model.hidden else y


def fibinet(model, v, x, x0, dense):
    weights = torch.relu(torch.relu(v.mean(2) @ dense["squeeze.w"]) @ dense["excite.w"])
    numbers = {"all": [0] * len(LEFT), "each": LEFT, "interaction": list(range(len(LEFT)))}[model.bilinear]
    matrices = dense["bilinear.w"][numbers]
    products = [
        torch.einsum("bpd,pde,bpe->bpe", z[:, LEFT], matrices, z[:, RIGHT]).flatten(1)
        for z in (v, v * weights[:, :, None])
    ]
    return mlp(torch.cat([*products, x], 1), dense)


def dlrm(model, v, x, x0, dense):
    z = layers(x, dense, "bottom")
    if model.interaction == "cat":
        return mlp(torch.cat([z, v.flatten(1)], 1), dense)
    vectors = torch.cat([z[:, None], v], 1)
    rows, columns = torch.triu_indices(vectors.shape[1], vectors.shape[1], 1)
    return mlp(torch.cat([z, (vectors @ vectors.transpose(1, 2))[:, rows, columns]], 1), dense)


def finalmlp(model, v, x, x0, dense):
    outputs = []
    for stream in (1, 2):
        context, h = getattr(model, f"context_{stream}"), x0
        if model.gated:
            read = dense.get(f"gate_{stream}.context")
            if context:
                read = v[:, [NAMES.index(field) for field in context]].flatten(1)
            z = layers(read, dense, f"gate_{stream}")
            gate = torch.sigmoid(z @ dense[f"gate_{stream}.out.w"] + dense[f"gate_{stream}.out.b"])
            h = 2 * gate * x0
        outputs.append(layers(h, dense, f"mlp_{stream}"))
    o1, o2 = outputs
    a, b = (o.unflatten(1, (model.heads, -1)) for o in outputs)
    fused = torch.einsum("bhm,hmn,bhn->b", a, dense["fusion.w"], b)
    return (o1 @ dense["fusion.1.w"] + o2 @ dense["fusion.2.w"] + dense["fusion.b"]).flatten() + fused


def sloped(a, dense, name):
    number = 0
    while (here := f"{name}.{number}") + ".w" in dense:
        s, alpha = a @ dense[f"{here}.w"] + dense[f"{here}.b"], dense[f"{here}.alpha"]
        if f"{here}.mean" in dense:
            p = torch.sigmoid(functional.batch_norm(s, None, None, training=True))
            a = p * s + (1 - p) * alpha * s
        else:
            a = functional.prelu(s, alpha)
        number += 1
    return a


def din(model, v, x, x0, dense, rows):
    """Padded, with a mask, as sequences are in PyTorch."""
    lists, target = BATCH.ragged["viewed"], v[:, 1]
    pieces = [torch.from_numpy(one.astype(np.int64)) for one in np.split(lists.values, lists.offsets[1:-1])]
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in pieces], batch_first=True).bool()
    e = rows[torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)]
    t = target[:, None].expand_as(e)
    seen = torch.cat([e, t, e - t, e * t], 2)[mask]  # Dice's statistics are of elements
    unit = "attention.viewed"
    scores = (sloped(seen, dense, unit) @ dense[f"{unit}.out.w"]).flatten() + dense.get(f"{unit}.out.b", 0)
    weights = torch.full(mask.shape, -torch.inf if model.softmax else 0.0, dtype=e.dtype)
    weights = weights.masked_scatter(mask, scores)
    if model.softmax:
        weights = torch.softmax(weights, 1).nan_to_num(0.0)
    interest = (weights[:, :, None] * e).sum(1)
    a = sloped(torch.cat([v[:, :-1].flatten(1), interest, x], 1), dense, "mlp")
    return (a @ dense["mlp.out.w"] + dense["mlp.out.b"]).flatten()


def fm_pairs(v):
    return torch.triu(v @ v.transpose(1, 2), diagonal=1).sum((1, 2))


def pnn(model, v, x, x0, dense):
    return mlp(torch.cat([v.flatten(1), (v[:, LEFT] * v[:, RIGHT]).sum(2), x], 1), dense)


TWINS = {
    "lr": lambda model, v, x, x0, dense: dense["bias"],
    "fm": lambda model, v, x, x0, dense: fm_pairs(v) + dense["bias"],
    "nfm": lambda model, v, x, x0, dense: mlp((v[:, LEFT] * v[:, RIGHT]).sum(1), dense),
    "wide_deep": lambda model, v, x, x0, dense: mlp(x0, dense),
    "dnn": lambda model, v, x, x0, dense: mlp(x0, dense),
    "pnn": pnn,
    "deepfm": lambda model, v, x, x0, dense: fm_pairs(v) + mlp(x0, dense),
    "dcn": dcn,
    "dcnv2": dcnv2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "fibinet": fibinet,
    "dlrm": dlrm,
    "finalmlp": finalmlp,
}
"""The logits of every model without its first-order term, by the name of its file."""
SEQUENCE_TWINS = {"din": din}
"""Likewise, of models that see the rows of each element."""


def twin_logits(name, model, rows, dense):
    vectors, x = twin_vectors(rows), torch.from_numpy(BATCH.dense).to(rows.dtype)
    first = model.parts()[0].name == "w"
    v = vectors[:, :, 1:] if first else vectors
    linear = vectors[:, :, 0].sum(1) if first else torch.zeros(len(x), dtype=rows.dtype)
    if "dense.w" in dense:
        linear = linear + x @ dense["dense.w"]
    x0 = torch.cat([v.flatten(1), x], 1)
    if name in SEQUENCE_TWINS:
        return linear + SEQUENCE_TWINS[name](model, v, x, x0, dense, rows)
    return linear + TWINS[name](model, v, x, x0, dense)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=map(variant_name, VARIANTS))
def test_a_model_agrees_with_its_twin_forward_and_backward(name, options, dtype):
    kept = {key: value for key, value in options.items() if not key.startswith("dropout")}
    model = build(name, SCHEMA, kept)
    rows = random(BATCH.keys.size, model.table().dim).astype(dtype)
    dense = {key: random(*shape).astype(dtype) for key, shape in model.dense_shapes().items()}
    twin_rows = torch.tensor(rows, requires_grad=True)
    twin_dense = {key: torch.tensor(value, requires_grad=True) for key, value in dense.items()}

    result = model.loss_and_gradients(BATCH, rows, dense, 0)
    logits = twin_logits(name, model, twin_rows, twin_dense)
    labels = torch.from_numpy(BATCH.labels.astype(dtype))
    loss = functional.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()

    close = {"rtol": 2e-4, "atol": 5e-5} if dtype == np.float32 else {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(result.loss, loss.item(), **close)
    np.testing.assert_allclose(result.logits, logits.detach().numpy(), **close)
    np.testing.assert_allclose(result.rows_gradient, twin_rows.grad.numpy(), **close)
    for key, gradient in result.dense_gradients.items():
        of_twin = twin_dense[key].grad
        np.testing.assert_allclose(gradient, 0 if of_twin is None else of_twin.numpy(), **close)
