"""What a table is made of: named parts in one row, each with its own optimizer and initializer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pslib.errors import ConfigurationError
from pslib.initializers import Initializer, Uniform, initializer_from_dict
from pslib.optimizers import Adagrad, Optimizer, optimizer_from_dict

__all__ = ["DIM_MAX", "PARTS_MAX", "DenseSpec", "PartSpec", "TableSpec", "text_hash"]

DIM_MAX = 4096
"""Floats of one part: one row stays far below a message and far above any published embedding (2,048)."""

PARTS_MAX = 8
"""Parts of one row: a byte numbers them, and no published model needs more than three."""

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


def text_hash(*texts: str) -> int:
    """64-bit hash of names (FNV-1a over UTF-8, a zero byte after each), the same for ever: it seeds rows.

    Meant for a handful of names; values of a column are hashed in ``cython_ext.hashing``.
    """
    state = _FNV_OFFSET
    for text in texts:
        for byte in text.encode() + b"\0":
            state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One named part of a row.

    Raises
    ------
    ConfigurationError
        When ``dim`` is not in 1..DIM_MAX or the name is not an identifier.
    """

    name: str
    dim: int
    optimizer: Optimizer = Adagrad()
    initializer: Initializer = Uniform()

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigurationError(f"part name: expected an identifier, got {self.name!r}")
        if not 1 <= self.dim <= DIM_MAX:
            raise ConfigurationError(f"part {self.name}: dim must be in 1..{DIM_MAX}, got {self.dim}")

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state that one row holds for this part."""
        return self.optimizer.state_floats(self.dim)

    def to_dict(self) -> dict[str, object]:
        """Plain form for the wire and for manifests."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": self.optimizer.to_dict(),
            "initializer": self.initializer.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A named set of rows of one shape, spread over servers.

    Attributes
    ----------
    name : str
        An identifier; also the stem of the table's checkpoint files.
    parts : sequence of PartSpec
        In the order in which their floats stand in a row.
    seed : int
        Seed of first values, 0..2^63-1.

    Raises
    ------
    ConfigurationError
        When names repeat, or there are no parts or more than PARTS_MAX.
    """

    name: str
    parts: tuple[PartSpec, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigurationError(f"table name: expected an identifier, got {self.name!r}")
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise ConfigurationError(
                f"table {self.name}: expected 1..{PARTS_MAX} parts, got {len(self.parts)}"
            )
        if len({part.name for part in self.parts}) != len(self.parts):
            raise ConfigurationError(f"table {self.name}: part names must differ")

    @property
    def dim(self) -> int:
        """Floats of all parts: the width of pulled rows and pushed gradients."""
        return sum(part.dim for part in self.parts)

    @property
    def state_floats(self) -> int:
        """Floats of state of all parts."""
        return sum(part.state_floats for part in self.parts)

    def part_seed(self, part: PartSpec) -> int:
        """Seed of one part's first values: a hash of (seed, table, part)."""
        return text_hash(str(self.seed), self.name, part.name)

    def part_slice(self, name: str) -> slice:
        """Columns of one part in a pulled row.

        Raises
        ------
        ConfigurationError
            When the table has no such part.
        """
        start = 0
        for part in self.parts:
            if part.name == name:
                return slice(start, start + part.dim)
            start += part.dim
        raise ConfigurationError(
            f"table {self.name}: no part {name!r}; it has {[p.name for p in self.parts]}"
        )

    def to_dict(self) -> dict[str, object]:
        """Plain form for the wire and for manifests."""
        return {"name": self.name, "seed": self.seed, "parts": [part.to_dict() for part in self.parts]}

    @staticmethod
    def from_dict(plain: dict[str, object]) -> TableSpec:
        """Read back what `to_dict` wrote; ConfigurationError when something does not fit."""
        try:
            parts: Sequence[dict[str, object]] = plain["parts"]  # type: ignore[assignment]
            return TableSpec(
                name=str(plain["name"]),
                seed=int(plain["seed"]),  # type: ignore[call-overload]
                parts=tuple(
                    PartSpec(
                        name=str(part["name"]),
                        dim=int(part["dim"]),  # type: ignore[call-overload]
                        optimizer=optimizer_from_dict(part["optimizer"]),  # type: ignore[arg-type]
                        initializer=initializer_from_dict(part["initializer"]),  # type: ignore[arg-type]
                    )
                    for part in parts
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"table description: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """All dense parameters of a model as one float32 vector, cut into blocks of equal size over the servers.

    Attributes
    ----------
    length : int
        Floats of all dense parameters together, >= 0.
    optimizer : Optimizer
        An elementwise one, so that where the blocks are cut changes nothing.

    Raises
    ------
    ConfigurationError
        When the optimizer mixes elements (RowwiseAdagrad) or the length is negative.
    """

    length: int
    optimizer: Optimizer

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ConfigurationError(f"dense parameters: length must be >= 0, got {self.length}")
        if not self.optimizer.elementwise:
            raise ConfigurationError(
                f"dense parameters: {type(self.optimizer).__name__} mixes elements; use SGD, Adagrad or Adam"
            )
