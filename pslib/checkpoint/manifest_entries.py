"""Types of the entries of a manifest, as docs/design/checkpoint.md states them, and a check against them.

A checksum tells damage, not forgery: readers of `pslib.checkpoint.manifest.Manifest` rely on these types.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

SHOWN_CHARS = 60
WHOLE_MAX = 1 << 62
"""Largest count: sums of a few of them stay in int64."""

Count = Annotated[int, Field(ge=0, le=WHOLE_MAX)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
FolderName = Annotated[
    str, Field(pattern=r"^[^/\\?\x00-\x1f]*[^/\\?.\x00-\x1f][^/\\?\x00-\x1f]*$", max_length=255)
]
"""A folder beside this one: no separator or control character, and not ``.`` or ``..``."""
Range = tuple[Count, Count]
_Empty = Annotated[dict[str, None], Field(max_length=0)]


class _Part(TypedDict):
    name: str
    dim: Count
    optimizer: dict[str, Any]
    initializer: dict[str, Any]


@with_config(ConfigDict(extra="allow"))
class _Table(TypedDict):
    name: str
    seed: int
    parts: list[_Part]


class _Parameter(TypedDict):
    name: str
    shape: list[Count]


@with_config(ConfigDict(extra="forbid"))
class _Dense(TypedDict):
    length: Count
    optimizer: NotRequired[dict[str, Any]]
    parameters: NotRequired[list[_Parameter]]


class _TrainedRows(TypedDict):
    data: str
    test_share: Number
    by: str | None


@with_config(ConfigDict(extra="allow"))
class _About(TypedDict, total=False):
    model: str
    schema: dict[str, Any]
    options: dict[str, Any]
    epochs: Count
    steps: Count
    seconds: Number
    files: list[str]
    key_kinds: dict[str, tuple[Literal["integer", "string"], str]]
    trained_rows: _TrainedRows


@with_config(ConfigDict(extra="allow"))
class _Job(TypedDict):
    what: str
    fingerprint: int
    outcome: dict[str, Any] | None


@with_config(ConfigDict(extra="forbid"))
class _Leases(TypedDict):
    count: Count
    done: list[Range]
    begun: list[tuple[Count, Count, Number]]


@with_config(ConfigDict(extra="forbid"))
class _Position(TypedDict):
    epochs: Count
    steps: Count
    seconds: Number
    files: list[str]


@with_config(ConfigDict(extra="allow"))
class _Progress(TypedDict):
    jobs: list[_Job]
    job: Count
    leases: NotRequired[_Leases | _Empty]
    ranks: NotRequired[list[Count]]
    since_s: NotRequired[Number]
    began: NotRequired[_Position]


@with_config(ConfigDict(extra="forbid"))
class _Cut(TypedDict):
    token: Token
    table: NotRequired[_Progress | _Empty]


@with_config(ConfigDict(extra="forbid"))
class _Increment(TypedDict):
    of: FolderName
    token: Token
    depth: Annotated[int, Field(ge=1, le=1 << 20)]


@with_config(ConfigDict(extra="allow"))
class _Entries(TypedDict):
    tables: list[_Table]
    dense: _Dense
    servers: Count
    about: NotRequired[_About]
    saved_utc: NotRequired[str]
    cut: NotRequired[_Cut | _Empty]
    increment: NotRequired[_Increment | _Empty]


@cache
def _adapter() -> TypeAdapter[_Entries]:
    return TypeAdapter(_Entries)


def check_entries(manifest: bytes) -> None:
    """Check the types of all entries of a manifest but ``files``.

    Raises
    ------
    ValueError
        If one is missing or of another type; the message is one line that names it.
    """
    try:
        _adapter().validate_json(manifest, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"] if not str(step).startswith("_"))
        raise ValueError(f"{where}: {first['msg']}, got {str(first['input'])[:SHOWN_CHARS]!r}") from None
