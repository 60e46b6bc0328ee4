"""PyTorch networks over rows of a parameter server: a user's `torch.nn.Module`, trained like any model.

PyTorch is not a dependency: it is imported when such a model is created. Reading, dedup, pulls, pushes, dense
parameters on servers and checkpoints are pslib's; forward and backward are PyTorch's, with its own threads.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.checkpoint import newest, read_manifest
from pslib.checkpoint.dense import dense_vector
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.settings import settings_of
from pslib.table.initializers import Initializer
from pslib.table.optimizers import Optimizer
from pslib.table.tables import PartSpec, TableSpec
from pslib.validation import came, kind_problem
from rec_models.engine.tape import Array
from rec_models.options import (
    DEFAULT_OPTIMIZER,
    DIM,
    OF_FIRST_VECTORS,
    OF_VECTORS,
    SEED,
    V_INITIALIZER,
    plain_options,
)
from rec_models.stepper import StepResult

if TYPE_CHECKING:
    import torch


INSTALL = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Command for the build without CUDA: 200 MB in place of some 6 GB."""
_ALONE = RLock()
"""Lock: PyTorch's generator is global, and a module has one set of values during a call."""


@dataclass(frozen=True, eq=False, repr=False)
class TorchModel:
    """Model of a PyTorch network, which computes logits from ``(vectors, dense)``.

    ``vectors`` is (B, F, D): a vector for each sparse and ragged field, sparse fields first, in the schema's
    order; that of a ragged field is the sum or mean of its rows. ``dense`` is (B, N), the dense fields.
    Logits are (B,) or (B, 1), and (B, T) for a schema of T labels; probabilities are their sigmoid.

    Attributes
    ----------
    schema : Schema
        Columns that the model reads.
    network : callable
        Returns the network, a `torch.nn.Module` of float32 parameters; called with PyTorch's generator
        seeded, so that all trainers have the same initial values. Parameters with ``requires_grad=False``,
        and buffers, keep the values created with this ``seed``.
    dim : int
        Floats of an embedding, D.
    v_optimizer : Optimizer
        Optimizer of embeddings. That of dense parameters is the trainer's ``dense_optimizer``, which runs on
        servers: PyTorch's are not used.
    v_initializer : Initializer
        Initial values of embeddings.
    loss : callable or None
        Called with float32 logits and labels, both of the shape above, and the (B,) weights or None; returns
        the loss of the batch, a scalar tensor. None: the mean log loss, weighted if the schema has a weight,
        summed over labels.
    seed : int
        Seed of the initial values of rows.

    Raises
    ------
    ConfigurationError
        When PyTorch is not installed, an option is out of range, or the network has parameters of another
        type or device, none to train, or layers that gather statistics (batch norm): those are no parameters,
        so each trainer would have its own. `torch.nn.LayerNorm` has none.
    """

    schema: Schema
    network: Callable[[], torch.nn.Module]
    _: KW_ONLY
    dim: Annotated[int, DIM] = 16
    v_optimizer: Annotated[Optimizer, OF_VECTORS] = DEFAULT_OPTIMIZER
    v_initializer: Annotated[Initializer, OF_FIRST_VECTORS] = V_INITIALIZER
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor] | None = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        plain_options(self)
        problems = [
            problem
            for name, (hint, setting) in settings_of(cast("Any", type(self))).items()
            if setting and (problem := setting.problem(name, getattr(self, name), hint))
        ]
        hints = {"schema": Schema, "network": Callable, "loss": Callable | None}
        kinds = [kind_problem(name, getattr(self, name), hint) for name, hint in hints.items()]
        problems += [problem for problem in kinds if problem]
        if not isinstance(self.network, type) and hasattr(self.network, "named_parameters"):
            problems.append(  # a module is callable too, but with a batch
                f"network: expected what makes a torch.nn.Module, got one, {came(self.network)}: give its "
                "class, or a function that makes it"
            )
        if not problems and self.loss is not None and not _takes_three(self.loss):
            problems.append(
                f"loss: expected one that is called with logits, labels and weights (or None), got "
                f"{came(self.loss)}: write loss=lambda logits, labels, weights: YOURS(logits, labels)"
            )
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
        with _seeded(seed):
            made = self.network()
        if not isinstance(made, torch.nn.Module):
            raise ConfigurationError(
                f"TorchModel: network: expected a function that makes a torch.nn.Module, it gave {made!r:.80}"
            )
        return made

    @cached_property
    def _kept(self) -> frozenset[str]:
        """Return the buffers of the module's ``state_dict``; other buffers only cache computations."""
        return frozenset(self._module.state_dict()) & dict(self._module.named_buffers()).keys()

    def table(self) -> TableSpec:
        """Return the one table: an embedding of each key."""
        return TableSpec(
            "embedding", (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),), self.seed
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the network's trained parameters, in its order."""
        return {name: tuple(value.shape) for name, value in _trained(self._module).items()}

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return initial values of the trained parameters, of a network created with this seed."""
        return {name: value.detach().numpy() for name, value in _trained(self._made(seed)).items()}

    def loss_and_gradients(
        self, batch: Batch, rows: Array, dense: Mapping[str, Array], step_seed: int
    ) -> StepResult:
        """Compute the loss of a batch and its gradients, with dropout seeded by ``step_seed``.

        Raises
        ------
        ConfigurationError
            When logits have another shape, the network changes its buffers, or ``loss`` returns no scalar or
            a constant.
        """
        torch = _torch()
        rows_here = _tensor(rows).requires_grad_()
        values = {name: _tensor(value).requires_grad_() for name, value in dense.items()}
        with _seeded(step_seed):
            logits = self._logits(self._module.train(), batch, rows_here, values)
            loss = self._loss_of(logits, batch)
            found = torch.autograd.grad(loss, [rows_here, *values.values()], materialize_grads=True)
        of_rows, *of_dense = (gradient.to_dense().numpy() for gradient in found)
        of_first = logits.detach().numpy() if logits.ndim == 1 else logits.detach().numpy()[:, 0]
        return StepResult(float(loss.detach()), of_first, of_rows, dict(zip(values, of_dense, strict=True)))

    def predict(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute probabilities of a batch, (B,) or (B, T), without dropout."""
        torch = _torch()
        values = {name: _tensor(value) for name, value in dense.items()}
        with _ALONE, torch.no_grad():
            logits = self._logits(self._module.eval(), batch, _tensor(rows), values)
            predicted: Array = torch.sigmoid(logits).numpy()
        return predicted

    def trained(self, path: str | os.PathLike[str]) -> torch.nn.Module:
        """Return the network with the parameters of a checkpoint, to export or to serve.

        In a folder of numbered checkpoints it is the newest. Rows are in the checkpoint's tables
        (docs/guide/checkpoints.md); `vectors` computes the network's input from them.

        Raises
        ------
        ConfigurationError, CheckpointCorruptError
            When the folder is no checkpoint, or that of another network.
        """
        place = newest(os.fspath(path))
        manifest = read_manifest(place)
        saved = [(str(one["name"]), tuple(one["shape"])) for one in manifest.dense.get("parameters", ())]
        if saved != list(self.dense_shapes().items()):
            raise ConfigurationError(f"{place}: it holds parameters of another network: {saved!r:.120}")
        vector, made = _torch().from_numpy(dense_vector(place, manifest)), self._made(self.seed)
        with _torch().no_grad():
            for value in _trained(made).values():
                value.copy_(vector[: value.numel()].reshape(value.shape))
                vector = vector[value.numel() :]
        return made

    def vectors(self, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
        """Compute a vector for each field, (B, F, D), from the (U, D) rows of ``batch.keys``."""
        nn = _torch().nn.functional
        fields = [nn.embedding(_tensor(batch.sparse), rows)]
        for field in self.schema.ragged:
            of_field = batch.ragged[field.name]
            places, ends = _tensor(of_field.values), _tensor(of_field.offsets.astype(np.int32))
            pooled = nn.embedding_bag(places, rows, ends, mode=field.pooling, include_last_offset=True)
            fields.append(pooled[:, None])
        return fields[0] if len(fields) == 1 else _torch().cat(fields, 1)

    def _loss_of(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        weights = None if batch.weights is None else _own(batch.weights)
        loss = (self.loss or _log_loss)(logits, _own(batch.every_label), weights)
        if not isinstance(loss, _torch().Tensor) or loss.ndim:
            raise ConfigurationError(f"TorchModel: loss: expected a scalar tensor, it gave {loss!r:.80}")
        if not loss.requires_grad:
            raise ConfigurationError(
                "TorchModel: loss: expected one that depends on vectors or parameters, got a constant; does "
                "the network or the loss detach, or run under torch.no_grad()?"
            )
        return loss

    def _logits(
        self, module: torch.nn.Module, batch: Batch, rows: torch.Tensor, values: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Compute logits of the shape of labels, converted to float32."""
        before = self._buffers()
        arguments = self.vectors(batch, rows), _own(batch.dense)
        logits = _torch().func.functional_call(module, dict(values), arguments)
        for name, (buffer, writes) in self._buffers().items():
            if name in before and before[name][0] is buffer and before[name][1] == writes:
                continue
            raise ConfigurationError(
                f"TorchModel: network: buffer {name}: it changes when the network is called, so each "
                "trainer would have its own and no checkpoint the right one; register it with "
                "persistent=False where no result depends on it"
            )
        labels = self.schema.labels
        shape = (len(batch),) if len(labels) < 2 else (len(batch), len(labels))
        if not isinstance(logits, _torch().Tensor) or tuple(logits.shape) not in (shape, (*shape, 1)):
            got = tuple(logits.shape) if isinstance(logits, _torch().Tensor) else came(logits)
            raise ConfigurationError(
                f"TorchModel: network: expected logits of shape {shape}, one for each example and label; "
                f"got {got}"
            )
        return logits.reshape(shape).float()

    def _buffers(self) -> dict[str, tuple[torch.Tensor, int]]:
        """Return each buffer of the ``state_dict`` with its number of writes."""
        if not self._kept:
            return {}
        buffers = self._module.named_buffers()
        return {name: (one, one._version) for name, one in buffers if name in self._kept}


def _log_loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Compute the mean log loss over the examples of a batch, summed over its labels."""
    each = _torch().nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    mean: torch.Tensor
    if weights is None:
        mean = each.sum() / max(len(labels), 1)
    else:  # shares of the sum, since weights may be close to the limits of float32
        shares = weights.double() / (float(weights.double().sum()) or 1.0)
        mean = (shares.float() @ each).sum()
    return mean


def _takes_three(loss: Callable[..., Any]) -> bool:
    """Return True if a loss accepts three arguments; PyTorch's own losses, which are modules, take two."""
    try:
        inspect.signature(getattr(loss, "forward", loss)).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return True
    return True


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor on the same memory, or a copy of a read-only array, which PyTorch does not support."""
    return _torch().from_numpy(array if array.flags.writeable else array.copy())


def _own(array: NDArray[Any]) -> torch.Tensor:
    """Return a copy: a network or loss may write into its input, and the batch is read later."""
    return _torch().from_numpy(array.copy())


def _trained(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters with a gradient, shared ones once; the others keep their initial values."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Context manager: seed PyTorch's random numbers, and restore their state afterwards.

    It seeds the CPU's generator only: `torch.manual_seed` seeds those of all devices, which takes 1.5 ms.
    """
    generator = _torch().default_generator
    with _ALONE:
        before = generator.get_state()
        try:
            generator.manual_seed(seed)
            yield
        finally:
            generator.set_state(before)


def _problems_of(module: torch.nn.Module) -> list[str]:
    torch = _torch()
    if isinstance(module, torch.jit.ScriptModule):
        return ["network: expected a torch.nn.Module in Python, got one of TorchScript: its values are fixed"]
    parameters = _trained(module)
    if not parameters:
        return ["network: expected one with parameters to train, got none"]
    lazy = [name for name, value in parameters.items() if torch.nn.parameter.is_lazy(value)]
    if lazy:
        return [f"network: {name}: expected its shape, got a lazy layer: give its sizes" for name in lazy]
    problems = [
        f"network: {name}: expected float32 on the CPU, got {value.dtype} on {value.device}"
        for name, value in parameters.items()
        if value.dtype != torch.float32 or value.device.type != "cpu"
    ]
    norms = torch.nn.modules.batchnorm._NormBase
    return problems + [
        f"network: {name}: it gathers statistics, of which each trainer would have its own: take LayerNorm"
        for name, layer in module.named_modules()
        if isinstance(layer, norms) and layer.track_running_stats
    ]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigurationError(
            f"TorchModel needs PyTorch, which is not installed; its build for CPUs: {INSTALL}"
        ) from error
    return torch
