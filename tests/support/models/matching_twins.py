"""Losses of the models of queries and items in PyTorch, by padded sequences, `torch.nn.GRU` and
convolutions.

A twin takes a model without dropout, a batch and parameters, and gives the loss that the model's step has.
PyTorch is imported by the caller, and handed in.
"""

from __future__ import annotations

import numpy as np

from rec_models.engine.tape import Tape

__all__ = ["TWINS"]


def places_of(torch, column):
    return torch.from_numpy(np.ascontiguousarray(column).astype(np.int64))


def column_of(torch, batch, schema, name):
    return places_of(torch, batch.sparse[:, [field.name for field in schema.sparse].index(name)])


def pooled(torch, batch, field, rows):
    lists = batch.ragged[field.name]
    values, offsets = places_of(torch, lists.values), torch.from_numpy(lists.offsets)
    bag = torch.nn.functional.embedding_bag
    return bag(values, rows, offsets, mode=field.pooling, include_last_offset=True)


def side(torch, batch, schema, rows, names, skip_lists=False):
    """Vectors of the named fields and dense fields, side by side."""
    columns = [rows[column_of(torch, batch, schema, f.name)] for f in schema.sparse if f.name in names]
    if not skip_lists:
        columns += [pooled(torch, batch, field, rows) for field in schema.ragged if field.name in names]
    for place, field in enumerate(schema.dense):
        if field.name in names:
            columns.append(torch.from_numpy(batch.dense[:, place : place + 1]).to(rows.dtype))
    return columns


def padded(torch, rows, lists):
    """(B, T, D) vectors and (B, T) where there is one."""
    lengths = torch.from_numpy(lists.lengths)
    mask = torch.arange(max(1, int(lists.lengths.max(initial=0))))[None] < lengths[:, None]
    x = torch.zeros(*mask.shape, rows.shape[1], dtype=rows.dtype)
    x[mask] = rows[places_of(torch, lists.values)]
    return x, mask


def masked_max(torch, states, mask):
    found = states.masked_fill(~mask[:, :, None], -torch.inf).max(dim=1).values
    return torch.where(mask.any(dim=1)[:, None], found, 0.0)


def grnn(torch, rows, lists, dense):
    x, mask = padded(torch, rows, lists)
    units = dense["gru.b"].numel()
    cell = torch.nn.GRU(rows.shape[1], units, batch_first=True).to(rows.dtype)
    zeros = torch.zeros(2 * units, dtype=rows.dtype)
    parameters = {
        "weight_ih_l0": dense["gru.W"].T,
        "weight_hh_l0": dense["gru.U"].T,
        "bias_ih_l0": dense["gru.c"],
        "bias_hh_l0": torch.cat([zeros, dense["gru.b"]]),
    }
    states, _ = torch.func.functional_call(cell, parameters, (x,))
    return masked_max(torch, states, mask)


def cnn(torch, rows, lists, dense, window):
    x, mask = padded(torch, rows, lists)
    weights = dense["cnn.W"].reshape(window, rows.shape[1], -1).permute(2, 1, 0)
    left = (window - 1) // 2
    around = torch.nn.functional.pad(x.transpose(1, 2), (left, window - 1 - left))
    states = torch.tanh(torch.nn.functional.conv1d(around, weights, dense["cnn.b"])).transpose(1, 2)
    return masked_max(torch, states, mask)


def names_of(schema):
    return {field.name for field in (*schema.dense, *schema.sparse, *schema.ragged)}


def weights_of(torch, batch, schema, dtype):
    labels = np.ones(len(batch)) if schema.label is None else batch.labels
    return torch.from_numpy(np.asarray(labels)).to(dtype)


def two_tower(torch, model, batch, schema, rows, dense, step_seed):
    sides = []
    for name, fields in (("query", names_of(schema) - set(model.item)), ("item", set(model.item))):
        x = torch.cat(side(torch, batch, schema, rows, fields), 1)
        for layer in range(len(model.hidden)):
            x = torch.relu(x @ dense[f"{name}.{layer}.w"] + dense[f"{name}.{layer}.b"])
        sides.append(x @ dense[f"{name}.out.w"] + dense[f"{name}.out.b"])
    u, v = sides
    if model.similarity == "cosine":
        scores = torch.nn.functional.cosine_similarity(u[:, None], v[None], dim=2)
    else:
        scores = u @ v.T
    scores = scores / model.temperature
    ids = column_of(torch, batch, schema, model.item[0])
    if model.logq:
        scores = scores - torch.from_numpy(batch.log_q).to(rows.dtype)[ids]
    same = (ids[:, None] == ids[None, :]) & ~torch.eye(len(ids), dtype=torch.bool)
    scores = scores.masked_fill(same, -torch.inf)
    losses = torch.nn.functional.cross_entropy(scores, torch.arange(len(ids)), reduction="none")
    weights = weights_of(torch, batch, schema, rows.dtype)
    return (losses * weights).sum() / weights.sum()


def ncf(torch, model, batch, schema, rows, dense, step_seed):
    movie = column_of(torch, batch, schema, model.item[0])
    user = column_of(torch, batch, schema, model.query_schema.sparse[0].name)
    drawn, owners = (
        places_of(torch, batch.negatives),
        torch.arange(len(batch)).repeat_interleave(model.negatives),
    )
    other = drawn != movie[owners]
    label = torch.cat([weights_of(torch, batch, schema, rows.dtype), torch.zeros(int(other.sum()))])
    p = rows[torch.cat([user, user[owners][other]])]
    q = rows[torch.cat([movie, drawn[other]])]
    phi = p[:, : model.dim] * q[:, : model.dim]
    if model.hidden:
        a = torch.cat([p[:, model.dim :], q[:, model.dim :]], 1)
        for layer in range(len(model.hidden)):
            a = torch.relu(a @ dense[f"mlp.{layer}.w"] + dense[f"mlp.{layer}.b"])
        phi = torch.cat([phi, a], 1)
    logits = (phi @ dense["out.w"] + dense["out.b"]).flatten()
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, label.to(rows.dtype))


def unit(torch, x):
    """Zeros stay zeros, with a gradient that is finite: `torch.nn.functional.normalize` divides by 1e-12."""
    lengths = x.norm(dim=1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1.0)


def cosine_hinge(torch, model, batch, schema, u, v, others=None):
    """Each with the first of some other items that is too near; without ``others`` they are the batch's."""
    ids = column_of(torch, batch, schema, model.item[0]).tolist()
    u, v, w = (unit(torch, one) for one in (u, v, v if others is None else others))
    names = ids if others is None else batch.negatives.tolist()
    near = model.margin - (u * v).sum(1)[:, None] + u @ w.T
    distances, weights = near.tolist(), weights_of(torch, batch, schema, u.dtype)
    chosen = []
    for place, item in enumerate(ids):
        order = [(place + 1 + step) % len(names) for step in range(len(names))]
        looked = [other for other in order if names[other] != item][: model.trials]
        chosen += [(place, other) for other in looked if distances[place][other] > 0][:1]
    if not chosen:
        return (near * 0).sum()
    rows, columns = (list(one) for one in zip(*chosen, strict=True))
    return (near[rows, columns] * weights[rows]).sum() / weights.sum()


def ssr(torch, model, batch, schema, rows, dense, step_seed):
    state = grnn(torch, rows, batch.ragged[schema.ragged[0].name], dense)
    item = rows[column_of(torch, batch, schema, model.item[0])]
    u, v = state @ dense["query.w"] + dense["query.b"], item @ dense["item.w"] + dense["item.b"]
    drawn = rows[places_of(torch, batch.negatives)] @ dense["item.w"] + dense["item.b"]
    return cosine_hinge(torch, model, batch, schema, u, v, drawn)


def simnet(torch, model, batch, schema, rows, dense, step_seed):
    sides = []
    for name, fields in (("query", names_of(schema) - set(model.item)), ("item", set(model.item))):
        views = []
        for field in schema.ragged:
            if field.name in fields and model.encoder == "gru":
                views.append(grnn(torch, rows, batch.ragged[field.name], dense))
            if field.name in fields and model.encoder == "cnn":
                views.append(cnn(torch, rows, batch.ragged[field.name], dense, model.window))
        views += side(torch, batch, schema, rows, fields, skip_lists=model.encoder != "bow")
        sides.append(torch.cat(views, 1) @ dense[f"{name}.w"] + dense[f"{name}.b"])
    return cosine_hinge(torch, model, batch, schema, *sides)


def tagspace(torch, model, batch, schema, rows, dense, step_seed):
    pooled_units = torch.tanh(cnn(torch, rows, batch.ragged[schema.ragged[0].name], dense, model.window))
    u = pooled_units @ dense["out.w"] + dense["out.b"]
    ids, drawn = column_of(torch, batch, schema, model.item[0]), places_of(torch, batch.negatives)
    own, near = (u * rows[ids]).sum(1), u @ rows[drawn].T
    labels = round(float(np.exp(-batch.log_q[batch.negatives[0]])))
    losses = []
    for place in range(len(batch)):
        tried = 0
        for step in range(len(drawn)):
            candidate = (place + step) % len(drawn)
            if drawn[candidate] == ids[place]:
                continue
            tried += 1
            distance = model.margin - own[place] + near[place, candidate]
            if distance.item() > 0:
                rank = max(1, (labels - 1) // tried)
                losses.append(distance * sum(1 / r for r in range(1, rank + 1)))
                break
    return torch.stack(losses).sum() / len(batch) if losses else (rows * 0).sum()


def word2vec(torch, model, batch, schema, rows, dense, step_seed):
    tape = Tape(training=True, step_seed=step_seed)
    centers, around, drawn, owners = (places_of(torch, one) for one in model.sampled(tape, batch))
    v, w = rows[:, : model.dim], rows[:, model.dim :]
    positive = torch.nn.functional.logsigmoid((v[centers] * w[around]).sum(1)).sum()
    negative = torch.nn.functional.logsigmoid(-(v[centers[owners]] * w[drawn]).sum(1)).sum()
    return -(positive + negative) / max(1, len(centers))


TWINS = {
    "two_tower": two_tower,
    "ncf": ncf,
    "ssr": ssr,
    "simnet": simnet,
    "tagspace": tagspace,
    "word2vec": word2vec,
}
"""The loss of every model of queries and items, by the name of its file."""
