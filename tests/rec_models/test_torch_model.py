"""Networks of PyTorch over pslib's rows, where PyTorch is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.table.optimizers import SGD
from rec_models import DNN
from rec_models.torch_model import TorchModel
from tests.support.clusters import cluster_of
from tests.support.counting import write_examples
from tests.support.models.gradient_check import BATCH, SCHEMA

torch = pytest.importorskip(
    "torch",
    reason="PyTorch is no dependency of pslib (1 GB); that a user's own class trains as pslib's models "
    "do is shown everywhere by tests/trainer (test_trainer.py, pipeline/test_pipeline.py), which "
    "bring such classes",
)
nn = torch.nn
DIM, FIELDS, NUMBERS = 3, len(SCHEMA.sparse) + len(SCHEMA.ragged), len(SCHEMA.dense)


class Mlp(nn.Module):
    """`rec_models.DNN`, as one writes it in PyTorch."""

    def __init__(self, width: int = DIM * FIELDS + NUMBERS, outputs: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 5), nn.ReLU(), nn.Dropout(dropout), nn.Linear(5, outputs)
        )

    def forward(self, vectors: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([vectors.flatten(1), dense], 1))


def rows_of(model: TorchModel) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(BATCH.keys.size, model.dim)).astype("f4")


def twin_of(dense: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same parameters as `rec_models.DNN` names and turns them."""
    w0, b0, w1, b1 = dense.values()
    values = {"mlp.0.w": w0.T, "mlp.0.b": b0, "mlp.out.w": w1.T, "mlp.out.b": b1}
    return {name: np.ascontiguousarray(value) for name, value in values.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_gradients_and_predictions_are_those_of_the_same_network_in_numpy(weighted):
    weights = np.random.default_rng(5).exponential(size=len(BATCH)).astype("f4") if weighted else None
    batch = replace(BATCH, weights=weights)
    model = TorchModel(SCHEMA, Mlp, dim=DIM, seed=7)
    rows, dense = rows_of(model), model.initial_dense(9)
    step = model.loss_and_gradients(batch, rows, dense, 0)
    own = DNN(SCHEMA, dim=DIM, hidden=(5,))
    expected = own.loss_and_gradients(batch, rows, twin_of(dense), 0)
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    np.testing.assert_allclose(step.logits, expected.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(step.rows_gradient, expected.rows_gradient, rtol=1e-4, atol=1e-6)
    assert list(step.dense_gradients) == list(model.dense_shapes())
    for found, wanted in zip(
        twin_of(step.dense_gradients).values(), expected.dense_gradients.values(), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    predicted = model.predict(batch, rows, dense)
    np.testing.assert_allclose(predicted, own.predict(batch, rows, twin_of(dense)), rtol=1e-4, atol=1e-6)


def test_a_network_of_two_labels_has_the_sum_of_their_losses():
    schema = replace(SCHEMA, more_labels=("bought",))
    other = 1 - BATCH.labels
    batch = replace(BATCH, more_labels=other[:, None])
    both = TorchModel(schema, lambda: Mlp(outputs=2), dim=DIM)
    rows, dense = rows_of(both), both.initial_dense(1)
    step = both.loss_and_gradients(batch, rows, dense, 0)
    predicted = both.predict(batch, rows, dense).astype("f8")
    labels = np.stack([BATCH.labels, other], 1)
    losses = -np.log(np.where(labels == 1, predicted, 1 - predicted))
    assert step.loss == pytest.approx(losses.sum() / len(batch), rel=1e-4)
    assert step.logits.shape == (len(batch),)
    assert predicted.shape == (len(batch), 2)


def test_a_loss_of_ones_own_replaces_the_log_loss_and_gets_labels_and_weights():
    weights = np.arange(len(BATCH), dtype="f4")
    batch, given = replace(BATCH, weights=weights), []

    def squares(logits, labels, weights):
        given.append((labels.numpy().tolist(), weights.numpy().tolist()))
        return ((torch.sigmoid(logits) - labels) ** 2).mean()

    model = TorchModel(SCHEMA, Mlp, dim=DIM, loss=squares)
    rows, dense = rows_of(model), model.initial_dense(0)
    step = model.loss_and_gradients(batch, rows, dense, 0)
    squared = (model.predict(batch, rows, dense) - BATCH.labels) ** 2
    assert step.loss == pytest.approx(squared.mean(), rel=1e-5)
    assert given == [(BATCH.labels.tolist(), weights.tolist())]
    with pytest.raises(ConfigurationError, match="loss: expected a scalar tensor, it gave tensor"):
        replace(model, loss=lambda logits, *_: logits).loss_and_gradients(BATCH, rows, dense, 0)


def test_a_loss_that_takes_no_weights_is_refused_with_what_to_write():
    for loss in (nn.BCEWithLogitsLoss(), lambda logits, labels: logits.sum()):
        with pytest.raises(ConfigurationError, match=r"loss: expected .* weights: YOURS\(logits, labels\)"):
            TorchModel(SCHEMA, Mlp, dim=DIM, loss=loss)
    own = nn.BCEWithLogitsLoss()
    model = TorchModel(SCHEMA, Mlp, dim=DIM, loss=lambda logits, labels, weights: own(logits, labels))
    rows, dense = rows_of(model), model.initial_dense(0)
    step = model.loss_and_gradients(BATCH, rows, dense, 0)
    assert step.loss == TorchModel(SCHEMA, Mlp, dim=DIM).loss_and_gradients(BATCH, rows, dense, 0).loss
    TorchModel(SCHEMA, Mlp, dim=DIM, loss=nn.functional.binary_cross_entropy_with_logits)


def test_weights_whose_sum_no_float32_holds_are_shares_and_without_any_the_loss_is_zero():
    weights = np.full(len(BATCH), 3e38, np.float32)
    model = TorchModel(SCHEMA, Mlp, dim=DIM)
    rows, dense = rows_of(model), model.initial_dense(0)
    losses = [
        model.loss_and_gradients(replace(BATCH, weights=one), rows, dense, 0).loss
        for one in (None, weights, 0 * weights)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[2] == 0


def test_dropout_is_that_of_the_steps_seed_and_predictions_have_none():
    model = TorchModel(SCHEMA, lambda: Mlp(dropout=0.5), dim=DIM)
    rows, dense = rows_of(model), model.initial_dense(0)
    losses = [model.loss_and_gradients(BATCH, rows, dense, seed).loss for seed in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]
    assert (model.predict(BATCH, rows, dense) == model.predict(BATCH, rows, dense)).all()


def test_a_step_leaves_the_random_numbers_of_a_script_as_they_were():
    model = TorchModel(SCHEMA, lambda: Mlp(dropout=0.5), dim=DIM)
    before = torch.get_rng_state()
    model.loss_and_gradients(BATCH, rows_of(model), model.initial_dense(0), 1)
    assert (torch.get_rng_state() == before).all()


def test_first_values_are_those_of_the_seed_on_every_trainer():
    one, other = (TorchModel(SCHEMA, Mlp, dim=DIM) for _ in range(2))
    torch.rand(3)
    for name, value in one.initial_dense(4).items():
        np.testing.assert_array_equal(value, other.initial_dense(4)[name])
    assert any((one.initial_dense(5)[name] != value).any() for name, value in one.initial_dense(4).items())


def test_a_parameter_that_a_step_does_not_use_has_a_gradient_of_zeros():
    class Idle(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.ones(4))

    model = TorchModel(SCHEMA, Idle, dim=DIM)
    step = model.loss_and_gradients(BATCH, rows_of(model), model.initial_dense(0), 0)
    assert (step.dense_gradients["idle"] == 0).all()


def test_what_is_read_only_is_copied_without_a_warning():
    model = TorchModel(SCHEMA, Mlp, dim=DIM)
    rows, dense = rows_of(model), model.initial_dense(0)
    before = model.loss_and_gradients(BATCH, rows, dense, 0).loss
    for array in (rows, *dense.values()):
        array.flags.writeable = False
    assert model.loss_and_gradients(BATCH, rows, dense, 0).loss == before


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (lambda: nn.Sequential(nn.BatchNorm1d(3)), "network: 0: it gathers statistics"),
        (
            lambda: nn.Linear(2, 1, bias=False).double(),
            "network: weight: expected float32 on the CPU, got torch.float64 on cpu",
        ),
        (
            lambda: nn.Linear(2, 1, bias=False).to("meta"),
            "weight: expected float32 on the CPU, got .* on meta",
        ),
        (nn.ReLU, "expected one with parameters to train, got none"),
        (lambda: nn.Linear(2, 1).requires_grad_(False), "expected one with parameters to train, got none"),
        (lambda: nn.LazyLinear(1, bias=False), "network: weight: expected its shape, got a lazy layer"),
        (torch.jit.ScriptModule, "expected a torch.nn.Module in Python"),
        (nn.Linear(2, 1), "expected what makes a torch.nn.Module, got one, a Linear: give its class"),
        (lambda: 5, "expected a function that makes a torch.nn.Module, it gave 5"),
    ],
)
def test_networks_that_can_not_be_trained_on_servers_are_refused_in_a_line(network, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        TorchModel(SCHEMA, network)
    assert "\n" not in str(caught.value)


def test_options_out_of_range_are_named():
    with pytest.raises(ConfigurationError, match="TorchModel: dim: expected"):
        TorchModel(SCHEMA, Mlp, dim=0)
    for argument, given in (
        ("schema", "clicks.parquet"),
        ("network", 5),
        ("network", None),
        ("loss", "focal"),
    ):
        with pytest.raises(ConfigurationError, match=f"TorchModel: {argument}: expected .*, got"):
            TorchModel(**{"schema": SCHEMA, "network": Mlp} | {argument: given})
    with pytest.raises(ConfigurationError, match="schema: expected a label"):
        TorchModel(replace(SCHEMA, label=None), Mlp)


def test_logits_of_another_shape_are_named_with_both_shapes():
    model = TorchModel(SCHEMA, lambda: Mlp(outputs=2), dim=DIM)
    with pytest.raises(
        ConfigurationError, match=rf"logits of shape \({len(BATCH)},\).*got \({len(BATCH)}, 2\)"
    ):
        model.predict(BATCH, rows_of(model), model.initial_dense(0))


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda *_: None, "expected logits of shape .* got None"),
        (lambda network, *given: (Mlp.forward(network, *given), 1), "expected logits of shape .* got "),
        (lambda network, *given: Mlp.forward(network, *given).detach(), "loss: expected one that depends on"),
        (torch.no_grad()(Mlp.forward), "loss: expected one that depends on"),
    ],
)
def test_what_no_step_can_be_made_of_is_told_in_a_line(forward, words):
    model = TorchModel(SCHEMA, type("Network", (Mlp,), {"forward": forward}), dim=DIM)
    with pytest.raises(ConfigurationError, match=words) as caught:
        model.loss_and_gradients(BATCH, rows_of(model), model.initial_dense(0), 0)
    assert "\n" not in str(caught.value)


def test_a_network_trains_on_two_servers_to_the_bits_of_one_and_its_checkpoint_is_a_module(tmp_path: Path):
    path = write_examples(tmp_path / "a.parquet", 600)
    schema = pslib.Schema(label="label", dense=["score"], sparse=["id"])
    saved = {}
    for servers in (1, 2):
        model = TorchModel(schema, lambda: Mlp(4 + 1), dim=4)
        with cluster_of(servers) as running:
            trainer = pslib.Trainer(
                model, running.join(), batch_rows=50, staleness=0, dense_optimizer=SGD(0.1), progress=False
            )
            trainer.fit(path, epochs=2)
            trainer.save(tmp_path / f"of-{servers}", keep_last=servers - 1)
        network = model.trained(tmp_path / f"of-{servers}")
        saved[servers] = {name: value.detach().numpy() for name, value in network.named_parameters()}
    first = model.initial_dense(0)
    for name, value in saved[1].items():
        np.testing.assert_array_equal(value, saved[2][name])
        assert (value != first[name]).any()
    with pytest.raises(ConfigurationError, match="parameters of another network"):
        TorchModel(schema, lambda: Mlp(8 + 1), dim=8).trained(str(tmp_path / "of-1"))


def test_the_example_trains_beats_a_guess_and_leaves_a_checkpoint(tmp_path: Path):
    root = Path(__file__).parents[2]
    generate = [
        sys.executable,
        "-m",
        "launch.cli.main",
        "data",
        "generate",
        "data",
        "--rows",
        "60000",
        "--test-rows",
    ]
    for command in ([*generate, "10000"], [sys.executable, str(root / "examples/train_torch.py"), "data"]):
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True, text=True, timeout=200, check=True,
        )  # fmt: skip
    assert float(done.stdout.split("AUC ")[1].split(",")[0]) > 0.65
    assert (tmp_path / "runs/torch/checkpoint/manifest.json").exists()


# --- frozen and shared parameters, buffers, other types, threads --------------------------------------------


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
