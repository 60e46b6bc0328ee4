"""Cost coefficients of one machine, measured by ``pslib bench calibrate`` for the planner."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from pslib.errors import ConfigurationError
from pslib.validation import is_finite

FORMAT = 2
SHIPPED = "coefficients.json"
TEXTS = ("machine", "date", "about")
"""Text fields of coefficients."""


@dataclass(frozen=True, slots=True)
class TableCost:
    """Server-thread time for one row of a table far larger than any cache.

    Attributes
    ----------
    storage : str
        One of `pslib.table.policies.STORAGES`.
    floats : int
        Weights of a row.
    pull_us, push_us, insert_us : float
        Microseconds of one thread: to read a row, to apply an optimizer step to it, to create it.
    """

    storage: str
    floats: int
    pull_us: float
    push_us: float
    insert_us: float


def row_cost(tables: Iterable[TableCost], storage: str, floats: int) -> TableCost:
    """Interpolate the cost of a row of so many floats linearly; extrapolate by the end slope.

    Parameters
    ----------
    tables : iterable of TableCost
        Ascending in floats within a storage.
    storage : str
    floats : int

    Raises
    ------
    ConfigurationError
        If that storage was not measured.
    """
    known = [cost for cost in tables if cost.storage == storage]
    if not known:
        measured = ", ".join(sorted({cost.storage for cost in tables}))
        raise ConfigurationError(
            f"storage {storage}: the coefficients have {measured}; measure it with: pslib bench calibrate"
        )
    if len(known) == 1:
        return known[0]
    above = next((i for i, cost in enumerate(known) if cost.floats >= floats), len(known) - 1)
    low, high = known[max(above, 1) - 1], known[max(above, 1)]
    along = (floats - low.floats) / (high.floats - low.floats)

    def straight(name: str) -> float:
        first, last = getattr(low, name), getattr(high, name)
        return max(float(first + along * (last - first)), min(first, last) / 2)

    return TableCost(storage, floats, straight("pull_us"), straight("push_us"), straight("insert_us"))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Costs of one machine. A microsecond is one of a core; a MB is 10^6 bytes.

    Attributes
    ----------
    machine, date, about : str
        Machine, date (UTC) and method of the measurement.
    cores : int
        Cores of that machine.
    tables : tuple of TableCost
        By storage, ascending in floats.
    row_overhead_bytes, row_overhead_share : float
        Memory of a row is ``payload * (1 + share) + bytes``: its index, and slots not used yet.
    server_process_bytes, trainer_process_bytes : float
        Private memory of a process without rows or batches.
    server_message_us, client_message_us : float
        A request and its reply, all threads of that end, excluding rows and bytes, with others in flight; for
        a server with one thread that owns rows.
    thread_job_us : float
        Cost added to any request by each further thread of a server that owns rows.
    server_row_us, client_row_us : float
        A row of a request: to find its owner, to copy it to its place.
    server_mb_us, client_mb_us : float
        A MB sent or received, the kernel's share included.
    hop_us : float
        Latency of the reply to a single small request, beyond the work for it.
    dense_step_us : float
        The optimizer's step on a million dense floats.
    read_value_us : float
        A value of an example (key or number): decoded, hashed, deduplicated.
    read_width, compute_width : float
        Cores used by reading, and by the parallel part of a step, if they are free.
    step_us : float
        A training step excluding the following, in one thread.
    key_us : float
        A key of an example in a step: row lookup, pooling, gradient summation.
    multiply_add_us : float
        A million multiply-adds of the model's matrix products.
    float_us : float
        A million floats of rows, inputs and activations, through all passes over them.
    loopback_mb_s : float
        Bandwidth of a socket of this machine to itself.
    checkpoint_mb_s : float
        A server writing its rows to disk.
    batch_us : float
        Remaining overhead of a batch in a trainer: queues, counters, thread wake-ups.
    together : float
        Slowdown of a trainer's stages when all run together, as they share caches, memory and Python's lock.
        Both are fitted to whole runs.
    """

    machine: str
    date: str
    about: str
    cores: int
    tables: tuple[TableCost, ...]
    row_overhead_bytes: float
    row_overhead_share: float
    server_process_bytes: float
    trainer_process_bytes: float
    server_message_us: float
    client_message_us: float
    thread_job_us: float
    server_row_us: float
    client_row_us: float
    server_mb_us: float
    client_mb_us: float
    hop_us: float
    dense_step_us: float
    read_value_us: float
    read_width: float
    compute_width: float
    step_us: float
    key_us: float
    multiply_add_us: float
    float_us: float
    loopback_mb_s: float
    checkpoint_mb_s: float
    batch_us: float
    together: float

    def row_us(self, storage: str, floats: int) -> TableCost:
        """Return the cost of a row of so many floats; see `row_cost`."""
        return row_cost(self.tables, storage, floats)

    def row_bytes(self, payload_bytes: float) -> float:
        """Return the memory of one row; ``payload_bytes`` are its weights, state and counters."""
        return payload_bytes * (1 + self.row_overhead_share) + self.row_overhead_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form for a JSON file."""
        return {"format": FORMAT} | asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any], where: str) -> Coefficients:
        """Parse the output of `to_dict`; ``where`` names the source in errors.

        Raises
        ------
        ConfigurationError
            Lists every name that is missing, unknown or not a number of at least 0.
        """
        if plain.get("format") != FORMAT:
            raise ConfigurationError(
                f"{where}: expected coefficients of format {FORMAT}, got {plain.get('format')!r}; "
                "measure them with: pslib bench calibrate --json FILE"
            )
        known = {field.name for field in fields(Coefficients)}
        values = {name: value for name, value in plain.items() if name != "format"}
        problems = [f"{where}: {name} is missing" for name in sorted(known - values.keys())]
        problems += [f"{where}: unknown {name!r}" for name in sorted(values.keys() - known)]
        problems += [
            f"{where}: {name}: expected a number of 0 or more, got {value!r}"
            for name, value in values.items()
            if name in known and name not in (*TEXTS, "tables") and not _is_amount(value)
        ]
        tables, wrong = _tables_of(values.get("tables", ()), where)
        if problems + wrong:
            raise ConfigurationError(*problems, *wrong)
        return Coefficients(**(values | {"tables": tables}))


def _is_amount(value: Any) -> bool:
    return is_finite(value) and value >= 0


def _tables_of(given: Any, where: str) -> tuple[tuple[TableCost, ...], list[str]]:
    """Return row costs, sorted, and the problems found in them."""
    names = {field.name for field in fields(TableCost)}
    costs = []
    for one in given if isinstance(given, list | tuple) else ():
        numbers = [one.get(name) for name in sorted(names - {"storage"})] if isinstance(one, Mapping) else []
        if not numbers or one.keys() != names or not all(map(_is_amount, numbers)):
            return (), [f"{where}: tables: expected {', '.join(sorted(names))} of each, got {one!r}"]
        costs.append(TableCost(**one))
    if not costs:
        return (), [f"{where}: tables: expected a list of costs, got {given!r}"]
    return tuple(sorted(costs, key=lambda cost: (cost.storage, cost.floats))), []


def read_coefficients(path: str | Path) -> Coefficients:
    """Read coefficients from a JSON file.

    Raises
    ------
    ConfigurationError
        If it can't be read, or is not output of `Coefficients.to_dict`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: can't be read: {reason}") from error
    return _parsed(text, str(path))


def shipped_coefficients() -> Coefficients:
    """Return the coefficients shipped with pslib, of the machine and date that they name."""
    return _parsed(files("pslib.planner").joinpath(SHIPPED).read_text(encoding="utf-8"), SHIPPED)


def _parsed(text: str, where: str) -> Coefficients:
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: expected JSON: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigurationError(f"{where}: expected an object, got {type(plain).__name__}")
    return Coefficients.from_dict(plain, where)
