"""Every session model against a twin in PyTorch that reads one prefix at a time, where PyTorch is installed.

A twin makes the state after a prefix from the (L, D) vectors of its items, as the paper writes it: loops, and
matrices where the models here have neither.
"""

from itertools import pairwise

import numpy as np
import pytest

from rec_models import SESSION_MODELS, build
from tests.support.models.gradient_check import assert_step_is_pytorchs, parameters, without_dropout
from tests.support.models.papers import WITHOUT_TORCH
from tests.support.models.session_models import SCHEMA, SESSIONS, VARIANTS, session_batch

torch = pytest.importorskip("torch", reason=WITHOUT_TORCH)
functional = torch.nn.functional


def linear(x, dense, weights, bias):
    return functional.linear(x, dense[weights].T, dense[bias])


def gru_states(x, dense):
    """`torch.nn.GRU` over one list; its second bias is all zeros but the candidate's."""
    H = x.shape[1]
    cell = torch.nn.GRU(H, H).double()
    parameters = {
        "weight_ih_l0": dense["gru.W"].T,
        "weight_hh_l0": dense["gru.U"].T,
        "bias_ih_l0": dense["gru.c"],
        "bias_hh_l0": torch.cat([torch.zeros(2 * H), dense["gru.b"]]),
    }
    return torch.func.functional_call(cell, parameters, x[:, None])[0][:, 0]


def gru4rec(model, x, ids, dense):
    return gru_states(x, dense)[-1]


def narm(model, x, ids, dense):
    h = gru_states(x, dense)
    weights = torch.stack(
        [
            torch.sigmoid(linear(h[-1], dense, "attention.A1", "attention.a") + one @ dense["attention.A2"])
            @ dense["attention.v"]
            for one in h
        ]
    )
    return linear(torch.cat([h[-1], weights @ h]), dense, "decoder.B", "decoder.b")


def stamp(model, x, ids, dense):
    of_last, of_mean = x[-1] @ dense["attention.W2"], x.mean(0) @ dense["attention.W3"]
    gates = torch.sigmoid(linear(x, dense, "attention.W1", "attention.b") + of_last + of_mean)
    m_a = (gates @ dense["attention.W0"]) @ x
    return torch.tanh(linear(m_a, dense, "A.W", "A.b")) * torch.tanh(linear(x[-1], dense, "B.W", "B.b"))


def srgnn(model, x, ids, dense):
    nodes = sorted(set(ids))
    place = [nodes.index(one) for one in ids]
    taken = torch.zeros(len(nodes), len(nodes), dtype=x.dtype)
    for source, target in pairwise(place):
        taken[source, target] += 1
    leaving = taken / taken.sum(1, keepdim=True).clamp(min=1)
    arriving = taken.T / taken.sum(0)[:, None].clamp(min=1)
    v = torch.stack([x[ids.index(one)] for one in nodes])
    for _ in range(model.graph_steps):
        a = [arriving @ v @ dense["in.H"] + dense["in.b"], leaving @ v @ dense["out.H"] + dense["out.b"]]
        a_r, a_z, a_n = linear(torch.cat(a, 1), dense, "gates.W", "gates.c").chunk(3, 1)
        u_r, u_z, u_n = (v @ dense["gates.U"]).chunk(3, 1)
        r, z = torch.sigmoid(a_r + u_r), torch.sigmoid(a_z + u_z)
        v = (1 - z) * torch.tanh(a_n + r * (u_n + dense["gates.b"])) + z * v
    s_l = v[place[-1]]
    query = linear(s_l, dense, "attention.W1", "attention.c")
    alpha = [torch.sigmoid(query + v[i] @ dense["attention.W2"]) @ dense["attention.q"] for i in place]
    s_g = torch.stack(alpha) @ v[place]
    return linear(torch.cat([s_l, s_g]), dense, "readout.W3", "readout.b")


def sasrec(model, x, ids, dense):
    def norm(e, name):
        return functional.layer_norm(e, e.shape[1:], dense[f"{name}.scale"], dense[f"{name}.shift"])

    def heads(e):
        return e.reshape(len(e), model.heads, -1).transpose(0, 1)

    x = x[-model.length_max :]
    e = x + dense["positions.P"][: len(x)]
    for here in (f"block.{block}" for block in range(model.blocks)):
        normed = norm(e, f"{here}.attention")
        q, k, v = (heads(normed @ dense[f"{here}.attention.{one}"]) for one in ("Q", "K", "V"))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        e = e + attended.transpose(0, 1).flatten(1)
        hidden = torch.relu(
            linear(norm(e, f"{here}.forward"), dense, f"{here}.forward.W1", f"{here}.forward.b1")
        )
        e = e + linear(hidden, dense, f"{here}.forward.W2", f"{here}.forward.b2")
    return norm(e, "last")[-1]


TWINS = {"gru4rec": gru4rec, "narm": narm, "stamp": stamp, "srgnn": srgnn, "sasrec": sasrec}


def rank_loss(model, scores):
    """Return the loss of the target, which stands first, and its negatives."""
    if getattr(model, "rank_loss", None) != "bpr-max":
        return functional.cross_entropy(scores[None], torch.tensor([0]))
    r, r_j = scores[0], scores[1:]
    s = torch.softmax(r_j, 0)
    return -torch.log(s @ torch.sigmoid(r - r_j)) + model.bpreg * (s @ r_j**2)


def twin_loss(model, twin, batch, rows, dense):
    """Mean loss over all prefixes of what is read of each session."""
    lists, log_q = batch.ragged["items"], torch.from_numpy(batch.log_q.astype(np.float64))
    negatives = torch.from_numpy(batch.negatives.astype(np.int64))
    losses = []
    for first, last in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        ids = lists.values[first:last].tolist()[-(model.items_max or last) - 1 :]
        for length in range(1, len(ids)):
            state, target = twin(model, rows[ids[:length], 1:], ids[:length], dense), ids[length]
            ranked = torch.cat([torch.tensor([target]), negatives[negatives != target]])
            scores = rows[ranked, 1:] @ state + rows[ranked, 0] - model.logq * log_q[ranked]
            losses.append(rank_loss(model, scores))
    return torch.stack(losses).mean()


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def drawn(request):
    """A model with its twin, a batch with items that repeat, and random parameters."""
    name, options = request.param
    model, batch = build(name, SCHEMA, without_dropout(options)), session_batch([3, 0, 1, 7, 2])
    return model, TWINS[name], batch, *parameters(model, batch)


def test_a_session_models_loss_and_gradients_are_its_twins(drawn):
    model, twin, batch, rows, dense = drawn

    def loss_of(theirs, weights):
        return twin_loss(model, twin, batch, theirs, weights)

    assert_step_is_pytorchs(loss_of, model, batch, rows, dense, rtol=1e-5, atol=1e-7)  # log_q is float32 here


def test_a_session_is_ranked_by_its_twins_last_state(drawn):
    model, twin, batch, rows, dense = drawn
    found = model.encode(batch, rows, dense, "items")
    lists, theirs = batch.ragged["items"], torch.tensor(rows)
    weights = {key: torch.tensor(value) for key, value in dense.items()}
    for state, first, last in zip(found, lists.offsets[:-1], lists.offsets[1:], strict=True):
        if first == last:
            assert not state.any()
            continue
        ids = lists.values[first:last].tolist()
        expected = twin(model, theirs[ids, 1:], ids, weights)
        np.testing.assert_allclose(state, expected.numpy(), rtol=1e-9, atol=1e-12)


def test_every_session_model_has_a_twin_and_a_line():
    assert list(TWINS) == list(SESSION_MODELS) == list(SESSIONS)
