"""Every model against a twin in PyTorch, forward and backward, where PyTorch is installed."""

import numpy as np
import pytest

from rec_models import MODELS, build
from tests.gradient_check import BATCH, SCHEMA, random
from tests.gradient_check import MODELS as CASES

torch = pytest.importorskip(
    "torch",
    reason="PyTorch is the reference here and no dependency of pslib (1 GB); the same mathematics is checked "
    "everywhere against NumPy definitions and finite differences",
)
embedding_bag = torch.nn.functional.embedding_bag


def twin_vectors(rows):
    """(B, F, D) field vectors by EmbeddingBag."""
    places = torch.from_numpy(BATCH.sparse.astype(np.int64))
    fields = [rows[places[:, f]] for f in range(places.shape[1])]
    for field in SCHEMA.ragged:
        ragged = BATCH.ragged[field.name]
        values, offsets = torch.from_numpy(ragged.values.astype(np.int64)), torch.from_numpy(ragged.offsets)
        fields.append(embedding_bag(values, rows, offsets, mode=field.pooling, include_last_offset=True))
    return torch.stack(fields, dim=1)


def twin_logits(name, rows, dense):
    vectors, x = twin_vectors(rows), torch.from_numpy(BATCH.dense).to(rows.dtype)
    v = vectors if name == "dnn" else vectors[:, :, 1:]
    y = dense.get("bias", torch.zeros(1, dtype=rows.dtype))
    if name != "dnn":
        y = y + vectors[:, :, 0].sum(1) + x @ dense["dense.w"]
    if name in ("fm", "deepfm"):
        products = v @ v.transpose(1, 2)
        y = y + torch.triu(products, diagonal=1).sum((1, 2))
    if name in ("wide_deep", "dnn", "deepfm"):
        a = torch.cat([v.flatten(1), x], dim=1)
        for layer in ("0", "1"):
            a = torch.relu(a @ dense[f"mlp.{layer}.w"] + dense[f"mlp.{layer}.b"])
        y = y + (a @ dense["mlp.out.w"] + dense["mlp.out.b"]).flatten()
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_agrees_with_its_twin_forward_and_backward(name, dtype):
    model = build(name, SCHEMA, {key: value for key, value in CASES[name].items() if key != "dropout"})
    rows = random(BATCH.keys.size, model.table().dim).astype(dtype)
    dense = {key: random(*shape).astype(dtype) for key, shape in model.dense_shapes().items()}
    twin_rows = torch.tensor(rows, requires_grad=True)
    twin_dense = {key: torch.tensor(value, requires_grad=True) for key, value in dense.items()}

    result = model.loss_and_gradients(BATCH, rows, dense, 0)
    logits = twin_logits(name, twin_rows, twin_dense)
    labels = torch.from_numpy(BATCH.labels.astype(dtype))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()

    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-10, "atol": 1e-13}
    np.testing.assert_allclose(result.loss, loss.item(), **close)
    np.testing.assert_allclose(result.logits, logits.detach().numpy(), **close)
    np.testing.assert_allclose(result.rows_gradient, twin_rows.grad.numpy(), **close)
    for key, gradient in result.dense_gradients.items():
        np.testing.assert_allclose(gradient, twin_dense[key].grad.numpy(), **close)
