"""A PyTorch network over rows of a parameter server: your own `torch.nn.Module`, trained as any model is.

PyTorch is no dependency: it is imported when such a model is made; ``pip install torch``
brings it. Reading, dedup, pulls, pushes, dense parameters on servers and checkpoints are pslib's; forward and
backward are PyTorch's, with its own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pslib.arguments import kind_problem
from pslib.batch import Batch
from pslib.checkpoint.comparison import dense_vector
from pslib.checkpoint.manifest import read_manifest
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.table.initializers import Initializer
from pslib.table.optimizers import Optimizer
from pslib.table.tables import PartSpec, TableSpec
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, option_problem
from rec_models.result import StepResult
from rec_models.tape import Array

if TYPE_CHECKING:
    import torch

__all__ = ["TorchModel"]


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A network that is called with ``(vectors, dense)`` and gives logits; probabilities are their sigmoid.

    ``vectors`` is (B, F, D): one vector a sparse and ragged field, sparse fields first, in the schema's
    order; a ragged field's is the sum or mean of its rows. ``dense`` is (B, N), the dense fields. Logits are
    (B,) or (B, 1), and (B, T) where the schema names T labels.

    Attributes
    ----------
    schema : Schema
        The columns that it reads.
    network : callable
        Makes the network, a `torch.nn.Module` of float32 parameters; called with PyTorch's generator seeded,
        so that every trainer makes the same first values.
    dim : int
        Floats of an embedding, D.
    v_optimizer : Optimizer
        Of embeddings. Dense parameters have the trainer's ``dense_optimizer``: it runs on servers, so none of
        PyTorch's is needed.
    v_initializer : Initializer
        Their first values.
    loss : callable or None
        Called with logits and labels, both of the shape above, and the (B,) weights or None; gives the loss
        of the batch, a scalar tensor. None: the mean log loss, by weight where the schema has one, summed
        over labels.
    seed : int
        Seed of the first values of rows.

    Raises
    ------
    ConfigurationError
        When PyTorch is not installed, an option is out of range, or the network has parameters of another
        type, none, or layers that gather statistics (batch norm): those are no parameters, so each trainer
        would have its own. `torch.nn.LayerNorm` has none.
    """

    schema: Schema
    network: Callable[[], torch.nn.Module]
    _: KW_ONLY
    dim: int = 16
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        options = ("dim", "v_optimizer", "v_initializer", "seed")
        problems = [problem for name in options if (problem := option_problem(name, getattr(self, name)))]
        hints = {"schema": Schema, "network": Callable, "loss": Callable | None}
        kinds = [kind_problem(name, getattr(self, name), hint) for name, hint in hints.items()]
        problems += [problem for problem in kinds if problem]
        if not problems and not self.schema.labels:
            problems.append("schema: expected a label, got none; name the column of 0 and 1")
        problems = problems or _problems_of(self._module)
        if problems:
            raise ConfigurationError(*(f"TorchModel: {problem}" for problem in problems))

    @cached_property
    def _module(self) -> torch.nn.Module:
        return self._made(self.seed)

    def _made(self, seed: int) -> torch.nn.Module:
        torch = _torch()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self.network()
        if not isinstance(made, torch.nn.Module):
            raise ConfigurationError(
                f"TorchModel: network: expected a function that makes a torch.nn.Module, it gave {made!r:.80}"
            )
        return made

    def table(self) -> TableSpec:
        """The one table: an embedding of each key."""
        return TableSpec(
            "embedding", (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),), self.seed
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the network's parameters, in its own order."""
        return {name: tuple(value.shape) for name, value in self._module.named_parameters()}

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Their first values, as the network gives them with this seed."""
        return {name: value.detach().numpy() for name, value in self._made(seed).named_parameters()}

    def loss_and_gradients(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> StepResult:
        """Loss of a batch and its gradients, with dropout seeded by ``step_seed``.

        Raises
        ------
        ConfigurationError
            When the network gives logits of another shape, or ``loss`` no scalar.
        """
        torch = _torch()
        rows_here = _tensor(rows).requires_grad_()
        values = {name: _tensor(value).requires_grad_() for name, value in dense.items()}
        self._module.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed)
            logits = self._logits(batch, rows_here, values)
            loss = self._loss_of(logits, batch)
        found = torch.autograd.grad(loss, [rows_here, *values.values()], materialize_grads=True)
        of_rows, *of_dense = (gradient.numpy() for gradient in found)
        of_first = logits.detach().numpy() if logits.ndim == 1 else logits.detach().numpy()[:, 0]
        return StepResult(float(loss.detach()), of_first, of_rows, dict(zip(values, of_dense, strict=True)))

    def predict(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Probabilities of a batch, (B,) or (B, T), without dropout."""
        torch = _torch()
        values = {name: _tensor(value) for name, value in dense.items()}
        self._module.eval()
        with torch.no_grad():
            predicted: Array = torch.sigmoid(self._logits(batch, _tensor(rows), values)).numpy()
        return predicted

    def trained(self, path: str) -> torch.nn.Module:
        """The network with the parameters of a checkpoint, to export or to serve.

        Rows are the checkpoint's tables, see its README; `vectors` says what the network expects of them.

        Raises
        ------
        ConfigurationError, CheckpointCorruptError
            When it is no checkpoint, or not of this network.
        """
        manifest = read_manifest(path)
        saved = [(str(one["name"]), tuple(one["shape"])) for one in manifest.dense.get("parameters", ())]
        if saved != list(self.dense_shapes().items()):
            raise ConfigurationError(f"{path}: it holds parameters of another network: {saved!r:.120}")
        vector, made = _torch().from_numpy(dense_vector(path, manifest)), self._made(self.seed)
        with _torch().no_grad():
            for value in made.parameters():
                value.copy_(vector[: value.numel()].reshape(value.shape))
                vector = vector[value.numel() :]
        return made

    def vectors(self, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
        """(B, F, D): one vector a field from the (U, D) rows of ``batch.keys``."""
        nn = _torch().nn.functional
        fields = [nn.embedding(_tensor(batch.sparse), rows)]
        for field in self.schema.ragged:
            of_field = batch.ragged[field.name]
            places, ends = _tensor(of_field.values), _tensor(of_field.offsets.astype(np.int32))
            pooled = nn.embedding_bag(places, rows, ends, mode=field.pooling, include_last_offset=True)
            fields.append(pooled[:, None])
        return fields[0] if len(fields) == 1 else _torch().cat(fields, 1)

    def _loss_of(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        weights = None if batch.weights is None else _tensor(batch.weights)
        loss = (self.loss or _log_loss)(logits, _tensor(batch.every_label), weights)
        if not isinstance(loss, _torch().Tensor) or loss.ndim:
            raise ConfigurationError(f"TorchModel: loss: expected a scalar tensor, it gave {loss!r:.80}")
        return loss

    def _logits(self, batch: Batch, rows: torch.Tensor, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        arguments = self.vectors(batch, rows), _tensor(batch.dense)
        logits: torch.Tensor = _torch().func.functional_call(self._module, dict(values), arguments)
        labels = self.schema.labels
        shape = (len(batch),) if len(labels) < 2 else (len(batch), len(labels))
        if tuple(logits.shape) not in (shape, (*shape, 1)):
            raise ConfigurationError(
                f"TorchModel: network: expected logits of shape {shape}, one for each example and label; "
                f"got {tuple(logits.shape)}"
            )
        return logits.reshape(shape)


def _log_loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Mean log loss over the examples of a batch, summed over its labels."""
    each = _torch().nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    mean: torch.Tensor
    if weights is None:
        mean = each.sum() / max(len(labels), 1)
    else:  # shares of the sum: weights may be as large or small as float32 goes
        shares = weights.double() / (float(weights.double().sum()) or 1.0)
        mean = (shares.float() @ each).sum()
    return mean


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The same memory, unless nobody may write there: PyTorch has no such tensors."""
    return _torch().from_numpy(array if array.flags.writeable else array.copy())


def _problems_of(module: torch.nn.Module) -> list[str]:
    torch = _torch()
    parameters = dict(module.named_parameters())
    if not parameters:
        return ["network: expected one with parameters, got none"]
    problems = [
        f"network: {name}: expected float32, got {value.dtype}"
        for name, value in parameters.items()
        if value.dtype != torch.float32
    ]
    norms = torch.nn.modules.batchnorm._NormBase
    return problems + [
        f"network: {name}: it gathers statistics, of which each trainer would have its own: take LayerNorm "
        "or track_running_stats=False"
        for name, layer in module.named_modules()
        if isinstance(layer, norms) and layer.track_running_stats
    ]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigurationError(
            "TorchModel needs PyTorch, which is not installed: pip install torch brings it"
        ) from error
    return torch
