"""What networks of PyTorch may have: frozen and shared parameters, buffers, other types, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.table.optimizers import SGD
from rec_models.torch_model import TorchModel
from tests.rec_models.test_torch_model import DIM, FIELDS, NUMBERS, Mlp, rows_of, torch
from tests.support.clusters import cluster_of
from tests.support.counting import write_examples
from tests.support.models.gradient_check import BATCH, SCHEMA

nn = torch.nn


def test_frozen_parameters_stay_as_the_network_makes_them_in_training_and_in_what_is_exported(tmp_path):
    class Frozen(Mlp):
        def __init__(self) -> None:
            super().__init__(4 + 1)
            self.layers[0].requires_grad_(False)

    path = write_examples(tmp_path / "a.parquet", 200)
    schema = pslib.Schema(label="label", dense=["score"], sparse=["id"])
    model = TorchModel(schema, Frozen, dim=4, seed=3)
    assert list(model.dense_shapes()) == ["layers.3.weight", "layers.3.bias"]
    made = {name: value.detach().clone() for name, value in model._made(3).named_parameters()}
    with cluster_of(1) as running:
        decays = SGD(0.1, weight_decay=0.1)
        trainer = pslib.Trainer(
            model, running.join(), batch_rows=50, dense_optimizer=decays, seed=8, progress=False
        )
        trainer.fit(path)
        trainer.save(tmp_path / "saved")
    network = model.trained(str(tmp_path / "saved"))
    for name, value in network.named_parameters():
        assert torch.equal(value, made[name]) == (not value.requires_grad), name
    assert [value.requires_grad for value in network.parameters()] == [False, False, True, True]


def test_a_parameter_that_two_layers_share_is_one_on_servers_and_in_the_module():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = DIM * FIELDS + NUMBERS
            self.one, self.other, self.out = (
                nn.Linear(width, width),
                nn.Linear(width, width),
                nn.Linear(width, 1),
            )
            self.other.weight = self.one.weight

        def forward(self, vectors, dense):
            return self.out(self.other(torch.cat([vectors.flatten(1), dense], 1)) + 0 * self.one.weight.sum())

    model = TorchModel(SCHEMA, Tied, dim=DIM)
    assert list(model.dense_shapes()) == ["one.weight", "one.bias", "other.bias", "out.weight", "out.bias"]
    rows, dense = rows_of(model), model.initial_dense(0)
    step = model.loss_and_gradients(BATCH, rows, dense, 0)
    assert abs(step.dense_gradients["one.weight"]).max() > 0
    moved = {**dense, "one.weight": dense["one.weight"] + 1}
    assert (model.predict(BATCH, rows, moved) != model.predict(BATCH, rows, dense)).all()


@pytest.mark.parametrize("how", ["in place", "anew", "spectral norm"])
def test_a_network_whose_buffers_change_is_refused_as_no_trainer_would_have_the_others(how):
    class Counts(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            if how == "spectral norm":
                nn.utils.parametrizations.spectral_norm(self.layers[0])

        def forward(self, vectors, dense):
            if how == "in place":
                self.calls += 1
            elif how == "anew":
                self.calls = self.calls + 1
            return super().forward(vectors, dense) * (1 + self.calls)

    model = TorchModel(SCHEMA, Counts, dim=DIM)
    with pytest.raises(
        ConfigurationError, match=r"network: buffer .*: it changes when the network is called"
    ):
        model.loss_and_gradients(BATCH, rows_of(model), model.initial_dense(0), 0)


def test_buffers_that_stay_and_those_that_no_state_has_are_the_networks_own_business():
    class Remembers(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((), 2.0))
            self.register_buffer("last", torch.zeros(0), persistent=False)

        def forward(self, vectors, dense):
            self.last = dense.detach()
            return super().forward(vectors, dense) * self.scale

    model = TorchModel(SCHEMA, Remembers, dim=DIM)
    rows, dense = rows_of(model), model.initial_dense(0)
    step = model.loss_and_gradients(BATCH, rows, dense, 0)
    plain = TorchModel(SCHEMA, Mlp, dim=DIM).loss_and_gradients(BATCH, rows, dense, 0)
    np.testing.assert_allclose(step.logits, 2 * plain.logits, rtol=1e-6)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_logits_of_another_type_are_float32_in_losses_and_predictions(kind):
    class Other(Mlp):
        def forward(self, vectors, dense):
            return super().forward(vectors, dense).to(kind)

    weighted = replace(BATCH, weights=np.ones(len(BATCH), "f4"))
    model, plain = (TorchModel(SCHEMA, one, dim=DIM) for one in (Other, Mlp))
    rows, dense = rows_of(model), model.initial_dense(0)
    for batch in (BATCH, weighted):
        step, expected = (one.loss_and_gradients(batch, rows, dense, 0) for one in (model, plain))
        assert step.loss == pytest.approx(expected.loss, rel=1e-2)
        assert step.logits.dtype == np.float32
    predicted = model.predict(BATCH, rows, dense)
    assert predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, plain.predict(BATCH, rows, dense), rtol=1e-2)


def test_a_sparse_gradient_is_as_good_as_a_dense_one():
    class Looks(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Embedding(4, 1, sparse=True)

        def forward(self, vectors, dense):
            return super().forward(vectors, dense) + self.bias(torch.ones(len(dense), dtype=torch.long))

    model = TorchModel(SCHEMA, Looks, dim=DIM)
    step = model.loss_and_gradients(BATCH, rows_of(model), model.initial_dense(0), 0)
    assert (step.dense_gradients["bias.weight"] != 0).ravel().tolist() == [False, True, False, False]


def test_a_network_or_loss_that_writes_into_what_it_is_given_leaves_the_batch_alone():
    class Writes(Mlp):
        def forward(self, vectors, dense):
            return super().forward(vectors, dense.add_(1))

    def smooth(logits, labels, weights):
        return nn.functional.binary_cross_entropy_with_logits(logits, labels.mul_(0.9), weights.mul_(2))

    batch = replace(BATCH, weights=np.ones(len(BATCH), "f4"))
    before = [array.copy() for array in (batch.dense, batch.labels, batch.weights)]
    model = TorchModel(SCHEMA, Writes, dim=DIM, loss=smooth)
    rows, dense = rows_of(model), model.initial_dense(0)
    model.loss_and_gradients(batch, rows, dense, 0)
    assert (model.predict(batch, rows, dense) == model.predict(batch, rows, dense)).all()
    for array, was in zip((batch.dense, batch.labels, batch.weights), before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_threads_that_share_a_model_get_what_each_would_get_alone():
    model = TorchModel(SCHEMA, lambda: Mlp(dropout=0.5), dim=DIM)
    rows, values = rows_of(model), [model.initial_dense(seed) for seed in range(2)]

    def steps(which: int) -> set[float]:
        if which == 2:
            return {float(model.predict(BATCH, rows, values[0]).sum()) for _ in range(30)}
        return {model.loss_and_gradients(BATCH, rows, values[which], which).loss for _ in range(30)}

    alone = [steps(which) for which in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(steps, range(3))) == alone
    assert [len(found) for found in alone] == [1, 1, 1]
