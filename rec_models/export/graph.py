"""An ONNX graph that is built node by node, and the symbols that stand for its values.

A symbol takes the place of an array in a `Var` while a model's ``forward`` is traced. Its first dimensions
are names: ``B`` is the number of examples, ``T.FIELD`` the longest list of a ragged field. The elements of
lists are padded, (B, T, ...): where a layer's arrays have a row an element, (N, ...), its graph has two
dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from rec_models.engine.tape import Array, Var

OPSET, IR_VERSION = 18, 8
"""Of 2022, when reductions got their axes as an input: what any runtime of today reads."""
BATCH = "B"
"""Name of the dimension of examples."""
LOWEST = np.float32(-1e30)
"""Score of what is masked in a softmax or a maximum: -inf would give NaN where all is masked."""

Shape: TypeAlias = tuple[int | str, ...]


class Symbol:
    """Value in a graph.

    Attributes
    ----------
    name : str
    shape : tuple of int and str
    dtype : numpy.dtype
    """

    __slots__ = ("_graph", "dtype", "name", "shape")

    def __init__(self, graph: Graph, name: str, shape: Shape, dtype: Any = np.float32) -> None:
        self._graph, self.name, self.shape, self.dtype = graph, name, shape, np.dtype(dtype)

    @property
    def leading(self) -> int:
        """Number of first dimensions that have names."""
        return next((i for i, one in enumerate(self.shape) if isinstance(one, int)), len(self.shape))

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """Return the symbol itself: numbers of a graph are float32.

        Raises
        ------
        TypeError
            For a type that is no float.
        """
        if np.dtype(dtype).kind != "f":
            raise TypeError(f"astype({np.dtype(dtype).name}) of a value of the graph")
        return self

    def __getitem__(self, key: tuple[slice, Sequence[int]]) -> Symbol:
        """Select columns of (B, N), as models select their dense fields.

        Raises
        ------
        TypeError
            For an index of another form, which would select examples, too.
        """
        columns = np.array(key[1])
        if key[0] != slice(None) or columns.ndim != 1 or columns.dtype.kind not in "iu":
            raise TypeError("an index of a value of the graph other than [:, columns]")
        return self._graph.op("Gather", self, columns, axis=1, shape=(BATCH, columns.size))


Value: TypeAlias = Symbol | Var | Array | float | int


def value_of(x: Value) -> Symbol | Array:
    """Return the symbol or the array of a value."""
    found = x.value if isinstance(x, Var) else x
    return found if isinstance(found, Symbol) else np.asarray(found)


def symbol_of(x: Value) -> Symbol:
    """Return the symbol of a value.

    Raises
    ------
    TypeError
        If it is an array.
    """
    found = value_of(x)
    if not isinstance(found, Symbol):
        raise TypeError(f"an array of {found.shape} where a graph has a value of its own")
    return found


def shape_of(x: Value) -> Shape:
    """Return the shape of a symbol or an array."""
    return tuple(value_of(x).shape)


class Graph:
    """A graph that grows.

    Parameters
    ----------
    parameters : mapping of str to array
        Dense parameters by name: those that are used are stored in the graph under their names.

    Raises
    ------
    ConfigurationError
        If onnx is not installed.
    """

    def __init__(self, parameters: dict[str, Array]) -> None:
        try:
            import onnx
        except ImportError as error:
            raise ConfigurationError(
                "to onnx: onnx is not installed; pip install 'sparse-pslib[onnx]' brings it"
            ) from error
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._inputs: dict[str, tuple[Symbol, int]] = {}
        self._constants: dict[str, Array] = {}
        self._names = {id(value): name for name, value in parameters.items()}
        self._kept: dict[object, Symbol] = {}

    def input(self, name: str, shape: Shape, dtype: Any = np.float32) -> Symbol:
        """Return an input of the graph, which is declared when it is first asked for."""
        if name not in self._inputs:
            kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self._inputs[name] = Symbol(self, name, shape, dtype), kind
        return self._inputs[name][0]

    def op(self, kind: str, *inputs: Value, shape: Shape | None = None, **attributes: Any) -> Symbol:
        """Add a node of one output.

        Parameters
        ----------
        kind : str
            Operator of ONNX.
        *inputs : Symbol, Var, array or number
            Floats are stored as float32, integers as int64.
        shape : tuple or None
            Of the output; None: that of the first input that is a symbol.
        **attributes
            Of the operator.
        """
        if shape is None:
            shape = next(one.shape for one in map(value_of, inputs) if isinstance(one, Symbol))
        (output,) = self.op_many(kind, *inputs, shapes=[shape], **attributes)
        return output

    def op_many(
        self, kind: str, *inputs: Value | None, shapes: Sequence[Shape | None], **attributes: Any
    ) -> list[Symbol]:
        """Add a node of several outputs; one of shape None is left out, and so is an input None."""
        at = len(self._nodes)
        outputs = ["" if shape is None else f"{kind}_{at}_{i}" for i, shape in enumerate(shapes)]
        names = ["" if one is None else self._name(one) for one in inputs]
        self._nodes.append(self._onnx.helper.make_node(kind, names, outputs, f"{kind}_{at}", **attributes))
        return [
            Symbol(self, name, shape)
            for name, shape in zip(outputs, shapes, strict=True)
            if shape is not None
        ]

    def kept(self, name: object, make: Any) -> Symbol:
        """Return what ``make()`` has made when this name was first asked for."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def _name(self, value: Value) -> str:
        found = value_of(value)
        if isinstance(found, Symbol):
            return found.name
        name = self._names.get(id(found)) or f"constant_{len(self._constants)}"
        kind = np.int64 if found.dtype.kind in "iu" else bool if found.dtype.kind == "b" else np.float32
        self._constants.setdefault(name, np.ascontiguousarray(found, kind).reshape(found.shape))
        return name

    # --- what several layers need ---------------------------------------------------------------------------

    def total(self, x: Value, axes: Sequence[int], shape: Shape, keepdims: bool = False) -> Symbol:
        """Sum over axes."""
        return self.op("ReduceSum", x, np.array(axes), keepdims=int(keepdims), shape=shape)

    def unsqueezed(self, x: Value, axis: int) -> Symbol:
        """Add a dimension of 1 before an axis."""
        shape = shape_of(x)
        axis = axis % (len(shape) + 1)
        return self.op("Unsqueeze", x, np.array([axis]), shape=(*shape[:axis], 1, *shape[axis:]))

    def reshaped(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        """Reshape what follows the dimensions with names."""
        target = np.array([0] * x.leading + list(shape))
        return self.op("Reshape", x, target, shape=(*x.shape[: x.leading], *shape))

    def columns(self, x: Value, first: int, last: int) -> Symbol:
        """Return some of the last dimension."""
        bounds = np.array([first]), np.array([last]), np.array([-1])
        return self.op("Slice", x, *bounds, shape=(*shape_of(x)[:-1], last - first))

    def dimension(self, x: Symbol, axis: int) -> Symbol:
        """Return the size of a dimension, (1,) int64."""
        return self.kept((x.name, axis), lambda: self.op("Shape", x, start=axis, end=axis + 1, shape=(1,)))

    def count_to(self, x: Symbol, axis: int) -> Symbol:
        """Return 0, 1, ... below the size of a dimension, as int64."""
        size = self.op("Squeeze", self.dimension(x, axis), shape=())
        return self.op("Range", np.array(0), size, np.array(1), shape=(x.shape[axis],))

    def examples(self) -> Symbol:
        """Return the number of examples, (1,) int64."""
        return self.dimension(next(iter(self._inputs.values()))[0], 0)

    # --- the whole ------------------------------------------------------------------------------------------

    def model(self, outputs: dict[str, Symbol], about: str) -> Any:
        """Return the checked `onnx.ModelProto`."""
        helper, names = self._onnx.helper, list(outputs)
        nodes = self._nodes + [
            helper.make_node("Identity", [symbol.name], [name], name) for name, symbol in outputs.items()
        ]
        kind = self._onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            about,
            [helper.make_tensor_value_info(one.name, to, one.shape) for one, to in self._inputs.values()],
            [helper.make_tensor_value_info(name, kind, outputs[name].shape) for name in names],
            [self._tensor(name, value) for name, value in self._constants.items()],
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(
            graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="pslib", doc_string=about
        )
        self._onnx.checker.check_model(model, full_check=True)
        return model

    def _tensor(self, name: str, value: NDArray[Any]) -> Any:
        return self._onnx.numpy_helper.from_array(value, name)
