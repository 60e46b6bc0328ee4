"""Score rows by the model of this folder, without pslib: needs numpy, pyarrow and onnxruntime.

    python scorer.py new.parquet                      the scores of the rows of a file, a line each
    Package("model-package").run("model", table)      the same in Python: a pyarrow.Table in, arrays out

A reference: short, to be read and to be written again in another language. schema.json has what it reads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Keys = np.ndarray[Any, np.dtype[np.uint64]]
U = np.uint64
GOLDEN, STRING, NULL = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
NAMES = "0x50b182ba19c7f107"  # salt of texts among integers


def mix(x: Keys) -> Keys:
    """Mix the bits of 64-bit numbers; all arithmetic is modulo 2^64."""
    for _ in range(2):
        x = (x ^ x >> U(32)) * U(0xD6E8FEB86659FD93)
    return x ^ x >> U(32)


def base_of(salt: str, tag: int) -> Keys:
    """Return what the keys of a vocabulary begin with."""
    return mix(np.array([int(salt, 16) ^ tag], U))


def plain(column: Any) -> Any:
    """Return a column as one array, without a dictionary."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def keys_of(column: Any, salt: str, kind: str) -> Keys:
    """Return the keys of integers or of texts; null has a key of its own."""
    column = plain(column)
    valid = np.asarray(column.is_valid())
    if kind == "integer" and pa.types.is_floating(column.type):  # as pandas has integers beside a missing one
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
        valid = np.asarray(column.is_valid())
    whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if kind and valid.any() and whole != (kind == "integer"):
        raise TypeError(f"expected {kind} keys, as in the training, got {column.type}")
    if whole or pa.types.is_null(column.type):
        numbers = np.asarray(column.cast(pa.int64(), safe=False).fill_null(0)).view(U)
        keys = mix(numbers ^ base_of(salt, GOLDEN))
    else:
        keys = keys_of_texts(column, salt)
    return np.where(valid, keys, base_of(salt, NULL))


def keys_of_texts(column: Any, salt: str) -> Keys:
    """Return the keys of texts: of their length, and of eight bytes at a time."""
    texts = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    sizes = np.array([len(text) for text in texts], U)
    words = -(-int(sizes.max(initial=1)) // 8)
    parts = np.frombuffer(b"".join(text.ljust(8 * words, b"\0") for text in texts), "<u8")
    keys = mix(base_of(salt, STRING) + sizes * U(GOLDEN))
    for i, part in enumerate(parts.reshape(-1, words).T):
        keys = np.where(U(8 * i) < sizes, mix(keys ^ part), keys)
    return keys


def integers_in(column: Any) -> Any:
    """Return texts as integers: true and false as 1 and 0, and others as a hash of the text."""
    names = keys_of_texts(column, NAMES)

    def number(text: str | None, name: int) -> int:
        if re.fullmatch("0|-?[1-9][0-9]{0,19}", text or "") and -(2**63) <= int(text or "") < 2**64:
            return int(text or "") % 2**64
        return {"false": 0, "true": 1}.get((text or "").lower(), name)

    found = [number(*one) for one in zip(column.to_pylist(), names.tolist(), strict=True)]
    return pa.array(np.array(found, U), mask=np.asarray(column.is_null()))


def field_keys(table: Any, field: Mapping[str, Any]) -> Keys:
    """Return the keys of a sparse field: of values, of a part of a time, of buckets, or of a cross."""
    first, *others = (plain(table[name]) for name in field["columns"])
    salt, kinds = field["salt"], field["kinds"]
    if field["take"]:
        return keys_of(part_of_time(first, field["take"]), salt, "integer")
    if field["buckets"]:
        x = np.asarray(first.cast(pa.float64()).fill_null(np.nan))
        with np.errstate(invalid="ignore", over="ignore"):
            if field["buckets"] == "log":
                logs = np.floor(np.log(np.maximum(x, 2)) ** 2)
                places = np.clip(np.where(x > 2, logs, np.floor(x)), -(2.0**62), 2.0**62)
            else:
                places = np.searchsorted(field["buckets"], x, side="right")
            places = np.where(np.isnan(x), 0, places).astype(np.int64)
        return keys_of(pa.array(places, mask=np.isnan(x)), salt, "integer")
    keys = keys_of(first, salt, kinds[0])
    for column, kind in zip(others, kinds[1:], strict=True):
        keys = mix(keys) ^ keys_of(column, salt, kind)
    return mix(keys ^ base_of(salt, GOLDEN)) if others else keys


def part_of_time(column: Any, take: str) -> Any:
    """Return the hour, weekday (Monday 0), day since 1970 or month of a time."""
    if pa.types.is_null(column.type):
        return column
    if not pa.types.is_timestamp(column.type):  # seconds, or a date
        seconds = column.cast(pa.int64(), safe=False) if pa.types.is_integer(column.type) else column
        column = seconds.cast(pa.timestamp("s"))
    if column.type.tz is not None:
        column = pc.local_timestamp(column)
    if take == "day":
        midnight = pc.floor_temporal(column, unit="day").cast(pa.timestamp("s"), safe=False)
        return pc.divide(midnight.cast(pa.int64()), 86_400)
    return {"hour": pc.hour, "weekday": pc.day_of_week, "month": pc.month}[take](column)


def lists_of(table: Any, field: Mapping[str, Any]) -> tuple[Keys, Any]:
    """Return the keys of the last elements of lists, (B, T), and the lengths, (B,); T is at least 1."""
    column = plain(table[field["name"]])
    split = field["separator"] is not None and not pa.types.is_nested(column.type)
    if split:
        column = pc.split_pattern(column.cast(pa.large_string()), field["separator"])
    if pa.types.is_null(column.type):
        return np.zeros((len(column), 1), U), np.zeros(len(column), np.int64)
    whole = np.asarray(pc.list_value_length(column).fill_null(0))
    elements, owners = plain(column.flatten()), np.repeat(np.arange(len(column)), whole)
    if split:
        full = np.asarray(pc.not_equal(elements, ""))  # empty parts are left out
        elements, owners = elements.filter(pa.array(full)), owners[full]
        elements = integers_in(elements) if field["kind"] == "integer" else elements
    keys = keys_of(elements, field["salt"], field["kind"])
    whole = np.bincount(owners, minlength=len(column))
    ends, lengths = np.cumsum(whole)[:, None], np.minimum(whole, field["items_max"] or whole.max(initial=0))
    places = ends - lengths[:, None] + np.arange(max(1, lengths.max(initial=0)))
    found = np.zeros(places.shape, U)
    found[places < ends] = keys[places[places < ends]]
    return found, lengths.astype(np.int64)


def numbers_of(table: Any, field: Mapping[str, Any]) -> Any:
    """Return a dense field: null and NaN filled, and squeezed by sign(x) log(1 + |x|) if it says so."""
    with np.errstate(over="ignore"):
        x = np.asarray(plain(table[field["name"]]).cast(pa.float64()).fill_null(np.nan)).astype(np.float32)
    x = np.where(np.isnan(x), np.float32(field["fill"]), x).astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError(f"column {field['name']!r}: expected numbers that are finite in float32")
    return np.sign(x) * np.log1p(np.abs(x)) if field["log1p"] else x


class Package:
    """A folder with schema.json, rows.arrow and graphs."""

    def __init__(self, folder: str | Path = ".") -> None:
        folder = Path(folder)
        self.schema = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
        self.graphs = {
            name: onnxruntime.InferenceSession(folder / graph["file"])
            for name, graph in self.schema["graphs"].items()
        }
        rows = pa.ipc.open_file(pa.memory_map(str(folder / "rows.arrow"))).get_batch(0)
        self.keys, weights = rows["key"].to_numpy(), rows["row"].values.to_numpy()
        self.weights = weights.reshape(-1, rows["row"].type.list_size)

    def rows(self, keys: Keys) -> Any:
        """Return the rows of keys, (n, D); one that was not trained on has its initial values."""
        found = np.empty((len(keys), self.weights.shape[1]), np.float32)
        places = np.searchsorted(self.keys, keys)
        known = places < len(self.keys)
        known[known] = self.keys[places[known]] == keys[known]
        found[known] = self.weights[places[known]]
        found[~known] = np.concatenate([initial(keys[~known], part) for part in self.schema["parts"]], axis=1)
        return found

    def inputs(self, name: str, table: Any) -> dict[str, Any]:
        """Return the inputs of a graph, by name."""
        graph, found = self.schema["graphs"][name], {}
        if graph["dense"]:
            found["dense"] = np.stack([numbers_of(table, one) for one in graph["dense"]], 1).astype(
                np.float32
            )
        if graph["sparse"]:
            keys = np.stack([field_keys(table, one) for one in graph["sparse"]], 1)
            found["sparse"] = self.rows(keys.ravel()).reshape(*keys.shape, self.weights.shape[1])
        for field in graph["ragged"]:
            keys, lengths = lists_of(table, field)
            rows = np.zeros((*keys.shape, self.weights.shape[1]), np.float32)
            listed = np.arange(keys.shape[1]) < lengths[:, None]
            rows[listed] = self.rows(keys[listed])
            divisor = np.maximum(1, lengths)[:, None] if field["pooling"] == "mean" else 1
            found[f"pooled.{field['name']}"] = (rows.sum(1) / divisor).astype(np.float32)
            found[f"elements.{field['name']}"], found[f"lengths.{field['name']}"] = rows, lengths
            found[f"keys.{field['name']}"] = keys.view(np.int64)
        return found

    def run(self, name: str, table: Any, at_once: int = 256) -> Any:
        """Return the probabilities of ``model``, or the vectors of ``query`` or ``item``, of each row."""
        session, wanted = self.graphs[name], [one.name for one in self.graphs[name].get_inputs()]
        output = "probability" if name == "model" else "vector"
        (shape,) = (one.shape for one in session.get_outputs() if one.name == output)
        parts = [np.empty((0, *shape[1:]), np.float32)]  # a GRU of onnxruntime aborts without examples
        for start in range(0, len(table), at_once):
            given = self.inputs(name, table.slice(start, at_once))
            parts.append(session.run([output], {key: given[key] for key in wanted})[0])
        return np.concatenate(parts)


def initial(keys: Keys, part: Mapping[str, Any]) -> Any:
    """Return the initial values of one part of rows: a function of key, seed and column."""
    columns = np.arange(part["dim"], dtype=U) * U(4)
    start = mix(keys ^ U(int(part["seed"], 16)))[:, None]
    kind, shape = part["initializer"], (len(keys), part["dim"])
    if kind["name"] == "Constant":
        return np.full(shape, kind["value"], np.float32)
    if kind["name"] == "Uniform":
        unit = (mix(start + columns * U(GOLDEN)) >> U(40)).astype(np.float32) * np.float32(2**-24)
        return (unit * np.float32(2) - np.float32(1)) * np.float32(kind["bound"])
    words = [mix(start + (columns + U(i)) * U(GOLDEN)) for i in range(3)]
    total = np.zeros(shape, np.int64)
    for word in words:
        total += sum((word >> U(bits) & U(0xFFFF)).astype(np.int64) for bits in (0, 16, 32, 48))
    return (total - 393210).astype(np.float32) * np.float32(2**-16) * np.float32(kind["std"])


def main(files: list[str]) -> Iterator[str]:
    """Yield the scores of files of Parquet, a line a row."""
    if not files:
        raise ValueError("expected files of Parquet: python scorer.py new.parquet")
    package = Package(Path(__file__).parent)
    name = next(iter(package.graphs))
    for file in files:
        for scores in package.run(name, pq.read_table(file)):
            yield "\t".join(f"{score:.6g}" for score in np.atleast_1d(scores))


if __name__ == "__main__":
    try:
        sys.stdout.writelines(f"{line}\n" for line in main(sys.argv[1:]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        sys.exit(f"scorer.py: {type(error).__name__}: {error}")
