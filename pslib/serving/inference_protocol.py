"""Requests and answers of the Open Inference Protocol v2, as bytes; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.data.column_casts import INTEGER_KIND
from pslib.errors import DataError
from pslib.schema import RaggedField, Schema, SparseField
from pslib.serving.tensors import LENGTHS, Tensor, bytes_of, table_of_tensors, tensor_of_bytes, tensor_of_json
from pslib.wire.codec import Buffer

HEADER_LENGTH = "inference-header-content-length"
"""Header of a request or answer whose JSON is followed by binary tensors: bytes of the JSON."""
OUTPUT = "prediction"
EXTENSIONS = ("binary_tensor_data", "model_repository")
INPUTS_MAX = 4096
NESTING = frozenset({dict, list})
DEPTH_MAX = 8
"""Arrays and objects inside each other; the protocol needs five."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request for predictions.

    Attributes
    ----------
    table : Arrow table
        Columns of the examples.
    id : str
        As the client named it; empty without.
    binary : bool
        True if predictions are to come as bytes.
    """

    table: pa.Table
    id: str
    binary: bool


def parts_of(body: bytes, header_length: int | None) -> tuple[Any, memoryview]:
    """Return the JSON of the body of ``POST /v2/models/NAME/infer``, and the binary tensors after it.

    Parameters
    ----------
    body : bytes
    header_length : int or None
        Bytes of its JSON; None: all.

    Raises
    ------
    DataError
        If it has fewer bytes, or no JSON.
    """
    view = memoryview(body)
    if header_length is None:
        return json_of(view), view[:0]
    if not 0 <= header_length <= view.nbytes:
        raise DataError(
            f"{HEADER_LENGTH}: expected 0 to {view.nbytes}, the bytes of the body, got {header_length}"
        )
    return json_of(view[:header_length]), view[header_length:]


def request_of(plain: Any, rest: memoryview, schema: Schema, rows_max: int) -> InferenceRequest:
    """Return the request that JSON and the binary tensors after it are.

    Parameters
    ----------
    plain : JSON value
    rest : memoryview
        Elements of binary tensors, one after the other.
    schema : Schema
        Columns of the model. Inputs that it does not read are ignored.
    rows_max : int
        Rows that it may have.

    Raises
    ------
    DataError
        If it is not a request; says where.
    """
    if not isinstance(plain, dict):
        raise DataError(f"request: expected a JSON object, got {type(plain).__name__}")
    inputs = plain.get("inputs")
    if not isinstance(inputs, list) or not inputs or not all(isinstance(one, dict) for one in inputs):
        raise DataError("request: expected inputs, an array of objects")
    if len(inputs) > INPUTS_MAX:
        raise DataError(f"request: expected at most {INPUTS_MAX} inputs, got {len(inputs)}")
    lists = frozenset(field.name for field in schema.ragged)
    table = table_of_tensors(_tensors(inputs, rest), lists, rows_max)
    return InferenceRequest(table, _id_of(plain), _wants_bytes(plain))


def _tensors(inputs: Sequence[Mapping[str, Any]], rest: memoryview) -> list[Tensor]:
    """Return the tensors of a request; binary ones stand in ``rest`` in their order."""
    found, at = [], 0
    for given in inputs:
        size = _parameters(given).get("binary_data_size")
        if size is None:
            if "data" not in given:
                raise DataError(f"input {given.get('name')!r}: expected data, or parameters.binary_data_size")
            found.append(tensor_of_json(given))
            continue
        if type(size) is not int or not 0 <= size <= rest.nbytes - at:
            raise DataError(
                f"input {given.get('name')!r}: binary_data_size: expected 0 to {rest.nbytes - at}, the bytes "
                f"that follow, got {size!r:.40}"
            )
        found.append(tensor_of_bytes(given, rest[at : at + size]))
        at += size
    if at != rest.nbytes:
        raise DataError(f"request: {rest.nbytes - at} bytes follow its inputs")
    return found


def _id_of(plain: Mapping[str, Any]) -> str:
    found = plain.get("id", "")
    if not isinstance(found, str) or len(found) > 256:
        raise DataError("request: expected id as a text of at most 256 characters")
    return found


def _wants_bytes(plain: Mapping[str, Any]) -> bool:
    """Return whether the answer's tensor is to be binary: for the request, or for its output."""
    wanted = plain.get("outputs")
    if wanted is None:
        return _parameters(plain).get("binary_data_output") is True
    if not isinstance(wanted, list) or not all(isinstance(one, dict) for one in wanted):
        raise DataError("request: expected outputs, an array of objects")
    names = [one.get("name") for one in wanted]
    if unknown := [name for name in names if name != OUTPUT]:
        raise DataError(f"output {unknown[0]!r:.60}: the model has one, {OUTPUT!r}")
    by_request = _parameters(plain).get("binary_data_output") is True
    return any(_parameters(one).get("binary_data", by_request) is True for one in wanted)


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise DataError("parameters: expected a JSON object")
    return found


def json_of(data: Buffer) -> Any:
    """Parse JSON of a client.

    Raises
    ------
    DataError
        If it is none, or arrays and objects are nested deeper than `DEPTH_MAX`.
    """
    try:
        plain = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DataError(f"body: expected JSON: {error!s:.120}") from error
    if _depth(plain) > DEPTH_MAX:
        raise DataError(f"body: expected at most {DEPTH_MAX} arrays and objects inside each other")
    return plain


def _depth(plain: Any) -> int:
    """Return how deep values are nested; stops below `DEPTH_MAX`."""
    level, depth = [plain], 0
    while level and depth <= DEPTH_MAX:
        parts = [one.values() if type(one) is dict else one for one in level if type(one) in NESTING]
        level = [value for part in parts for value in part if type(value) in NESTING]
        depth += 1
    return depth


def answer_of(
    request: InferenceRequest,
    scores: NDArray[np.float32],
    model: str,
    version: str,
    age_s: float | None = None,
) -> tuple[bytes, int | None]:
    """Return the answer's body, and the bytes of its JSON if a binary tensor follows."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": list(scores.shape)}
    data = b""
    if request.binary:
        data = bytes_of(scores)
        output["parameters"] = {"binary_data_size": len(data)}
    else:
        output["data"] = scores.reshape(-1).tolist()
    plain: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": [output]}
    plain |= {"id": request.id} if request.id else {}
    plain |= {} if age_s is None else {"parameters": {"age_s": age_s}}
    head = json.dumps(plain).encode()
    return head + data, len(head) if request.binary else None


def metadata_of(
    schema: Schema, kinds: Mapping[str, tuple[str, str, str]], name: str, versions: Sequence[str]
) -> dict[str, Any]:
    """Return the metadata of a model: its inputs are the columns of its features.

    Parameters
    ----------
    schema : Schema
    kinds : mapping
        Key kind of each vocabulary; of an unknown one the ids are texts.
    name : str
    versions : sequence of str
    """
    datatypes = {one.name: "FP32" for one in schema.dense}
    fields: list[SparseField | RaggedField] = [*schema.sparse, *schema.ragged]
    for field in fields:
        kind, *_ = kinds.get(field.vocabulary or field.name, ("", "", ""))
        datatypes[field.name] = "INT64" if kind == INTEGER_KIND else "BYTES"
    datatypes |= {one.name + LENGTHS: "INT32" for one in schema.ragged}
    inputs = [{"name": one, "datatype": datatype, "shape": [-1]} for one, datatype in datatypes.items()]
    tasks = len(schema.labels)
    output = {"name": OUTPUT, "datatype": "FP32", "shape": [-1] if tasks < 2 else [-1, tasks]}
    return {
        "name": name,
        "versions": list(versions),
        "platform": "pslib",
        "inputs": inputs,
        "outputs": [output],
    }
