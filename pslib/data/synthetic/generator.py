"""Generator of click data in Criteo's format from a seed, with a known best possible AUC.

Labels are drawn from the planted model of :mod:`pslib.data.synthetic.planted_model`. So a model exceeds the
AUC of the true probabilities on the test rows only by chance. That AUC is stored in ``generated.json`` beside
the data and in the metadata of both Parquet files (key ``pslib.generated``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.atomic_files import atomic_output, refuse_existing
from pslib.data.convert.csv_criteo import CRITEO_LABEL
from pslib.data.synthetic.planted_model import BLOCK_ROWS, Block, PlantedModel
from pslib.metrics.metrics import ScoreCounts
from pslib.schema import DenseField, Schema
from pslib.settings import Setting, Settings
from pslib.text import counted
from pslib.validation import came

METADATA_KEY = "pslib.generated"
SIDECAR = "generated.json"
FILES = ("train.parquet", "test.parquet", SIDECAR)

# Between 100 and 20,000 values a field, 158,000 in all: a million rows show each value several times.
DEMO_VOCABULARIES = (
    1_400, 550, 9_800, 20_000, 300, 100, 12_000, 600, 100, 6_000, 4_200, 16_000, 3_100,
    120, 7_200, 18_000, 110, 2_600, 1_700, 100, 14_000, 130, 150, 8_600, 220, 11_000,
)  # fmt: skip

VOCABULARY_MAX = 1 << 31  # 32-bit names stay distinct, and ranks fit the fixed point of the quantile tables
FIELDS_MAX = 1_000
SEED_MAX = 1 << 40  # leaves 16 bits for the number of the field

# The best AUC is taken from probabilities rounded to steps of 2**-20: bounded memory, and an error far below
# the sampling error of any test set.
_PROBABILITY_STEPS = 1 << 20


@dataclass(frozen=True, slots=True)
class GeneratorConfig(Settings):
    """Settings of the generator. Equal settings give equal data."""

    AT = ""

    train_rows: Annotated[int, Setting("Rows of ``train.parquet``.", ge=1)] = 400_000
    test_rows: Annotated[int, Setting("Rows of ``test.parquet``.", ge=1)] = 100_000
    seed: Annotated[
        int, Setting("Train and test share the planted model and no row.", ge=0, le=SEED_MAX - 1)
    ] = 1
    vocabularies: Annotated[
        tuple[int, ...],
        Setting("Distinct values of each sparse field C1, C2, ..., 1 to 2**31; nothing is stored per value."),
    ] = DEMO_VOCABULARIES
    dense_fields: Annotated[int, Setting("Integer columns I1, I2, ..., with nulls.", ge=0, le=FIELDS_MAX)] = (
        13
    )
    zipf: Annotated[
        float, Setting("Exponent of the frequencies: P(rank k) ~ (k + 1) ** -zipf.", ge=0, le=5)
    ] = 1.05
    positive_share: Annotated[float, Setting("Target share of label 1, below 1.", gt=0, le=1)] = 0.25
    signal: Annotated[
        float,
        Setting(
            "Standard deviation of the true logit; 1.6 gives a best AUC near 0.83, 0 gives noise.",
            ge=0,
            le=20,
        ),
    ] = 1.6
    fade: Annotated[
        float,
        Setting(
            "Decay of the effect of values with their rarity (`pslib.data.synthetic.planted_model`); with 0 "
            "and large vocabularies most of the signal is in values too rare to be learnt.",
            ge=0,
            le=5,
        ),
    ] = 0.0
    sparse_type: Annotated[
        Literal["string", "integer"],
        Setting(
            "Categorical values as 8 hexadecimal digits, as in Criteo's logs, or as int64.",
            choices=("string", "integer"),
        ),
    ] = "string"
    row_group_rows: Annotated[int, Setting("Rows of a row group.", ge=1, le=BLOCK_ROWS)] = BLOCK_ROWS

    def _field_problems(self) -> Iterator[str]:
        lines, sizes = list(Settings._field_problems(self)), self.vocabularies
        yield from lines
        if any(line.startswith("vocabularies") for line in lines):
            return
        if not 1 <= len(sizes) <= FIELDS_MAX or not all(1 <= size <= VOCABULARY_MAX for size in sizes):
            want = f"1 to {FIELDS_MAX} sizes from 1 to {VOCABULARY_MAX}"
            yield f"vocabularies: expected {want}, got {came(sizes)}"

    def _problems(self) -> Iterator[str]:
        if self.positive_share == 1:
            yield "positive_share: expected a share below 1, got 1"

    def model(self) -> PlantedModel:
        """Planted model of these settings."""
        return PlantedModel(
            seed=self.seed,
            vocabularies=self.vocabularies,
            dense_fields=self.dense_fields,
            zipf=self.zipf,
            positive_share=self.positive_share,
            signal=self.signal,
            fade=self.fade,
        )


@dataclass(frozen=True, slots=True)
class PartSummary:
    """Figures of one generated file.

    Attributes
    ----------
    file : str
        Name in the folder.
    rows, positives : int
    best_auc, best_logloss : float
        Figures of the true probabilities on these rows.
    """

    file: str
    rows: int
    positives: int
    best_auc: float
    best_logloss: float


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of `generate`.

    Attributes
    ----------
    folder : Path
    train, test : PartSummary
    config : GeneratorConfig
    """

    folder: Path
    train: PartSummary
    test: PartSummary
    config: GeneratorConfig

    @property
    def train_path(self) -> Path:
        """``train.parquet`` in the folder."""
        return self.folder / self.train.file

    @property
    def test_path(self) -> Path:
        """``test.parquet`` in the folder."""
        return self.folder / self.test.file

    def lines(self) -> list[str]:
        """The result for people, as lines."""
        return [
            f"{part.file}: {counted(part.rows, 'row')}, {part.positives / part.rows:.1%} positive, "
            f"best possible AUC {part.best_auc:.4f}, log loss {part.best_logloss:.4f}"
            for part in (self.train, self.test)
        ]


def generated_schema(config: GeneratorConfig) -> Schema:
    """Schema of generated data: dense fields as log(1 + x) with fill 0, sparse fields as keys."""
    return Schema(
        label=CRITEO_LABEL,
        dense=[DenseField(name, log1p=True) for name in _dense_names(config)],
        sparse=_sparse_names(config),
    )


def generate(
    folder: str | Path,
    config: GeneratorConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Generated:
    """Write ``train.parquet``, ``test.parquet`` and ``generated.json``.

    Rows are generated and written in blocks of 65,536, so memory does not depend on their number. Files
    appear under their names once complete.

    Parameters
    ----------
    folder : str or Path
        Created if missing.
    config : GeneratorConfig, optional
        Default: the data of the demonstration.
    overwrite : bool
        True if existing files may be replaced.
    progress : callable, optional
        Called with (rows done, rows in all) after each block.

    Returns
    -------
    Generated
        Paths and figures.

    Raises
    ------
    ConfigurationError
        If a file exists and ``overwrite`` is not set, or the folder can't be written.

    Examples
    --------
    >>> generate("data", GeneratorConfig(train_rows=1_000, test_rows=500)).test.best_auc  # doctest: +SKIP
    0.829
    """
    config = config or GeneratorConfig()
    target = Path(folder)
    refuse_existing(*(target / name for name in FILES), overwrite=overwrite)
    model = config.model()
    total, done = config.train_rows + config.test_rows, 0
    with ExitStack() as files:
        # All three are renamed together at the end, the sidecar last.
        sidecar, test_file, train_file = (
            files.enter_context(atomic_output(target / name)) for name in reversed(FILES)
        )
        parts = []
        for number, rows, name, path in (
            (0, config.train_rows, FILES[0], train_file),
            (1, config.test_rows, FILES[1], test_file),
        ):
            part = _PartWriter(config, name, path)
            with part:
                for block in _blocks(model, number, rows):
                    part.write(block)
                    done += block.labels.size
                    if progress:
                        progress(done, total)
            parts.append(part.summary())
        result = Generated(target, parts[0], parts[1], config)
        sidecar.write_text(json.dumps(_plain(result), indent=1) + "\n", encoding="utf-8")
    return result


def _dense_names(config: GeneratorConfig) -> list[str]:
    return [f"I{number}" for number in range(1, config.dense_fields + 1)]


def _sparse_names(config: GeneratorConfig) -> list[str]:
    return [f"C{number}" for number in range(1, len(config.vocabularies) + 1)]


def _plain(result: Generated) -> dict[str, Any]:
    return {
        "format": 1,
        "config": asdict(result.config),
        "train": asdict(result.train),
        "test": asdict(result.test),
    }


def _blocks(model: PlantedModel, part: int, rows: int) -> Iterator[Block]:
    for number, first in enumerate(range(0, rows, BLOCK_ROWS)):
        yield model.block(part, number, min(BLOCK_ROWS, rows - first))


class _PartWriter:
    """Write the blocks of one file and accumulate its figures."""

    def __init__(self, config: GeneratorConfig, name: str, path: Path) -> None:
        self._config, self._name = config, name
        sparse = pa.string() if config.sparse_type == "string" else pa.int64()
        self._schema = pa.schema(
            [pa.field(CRITEO_LABEL, pa.int8(), nullable=False)]
            + [pa.field(name, pa.int64()) for name in _dense_names(config)]
            + [pa.field(name, sparse) for name in _sparse_names(config)]
        )
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", compression_level=1)
        self._counts = np.zeros((2, _PROBABILITY_STEPS + 1), np.int64)

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            about = {"format": 1, "config": asdict(self._config), "part": asdict(self.summary())}
            self._writer.add_key_value_metadata({METADATA_KEY: json.dumps(about)})
        self._writer.close()

    def write(self, block: Block) -> None:
        """Append a block and count its true probabilities."""
        columns: list[pa.Array] = [pa.array(block.labels)]
        columns += [
            pa.array(values, mask=nulls)
            for values, nulls in zip(block.counts, block.count_nulls, strict=True)
        ]
        for number, (ranks, nulls) in enumerate(zip(block.ranks, block.rank_nulls, strict=True)):
            if self._config.sparse_type == "string":
                columns.append(_hex_column(ranks, nulls, number))
            else:
                columns.append(pa.array(ranks, mask=nulls))
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._config.row_group_rows)
        steps = np.rint(block.probabilities * _PROBABILITY_STEPS).astype(np.int64)
        for label in (0, 1):
            chosen = steps[block.labels == label]
            self._counts[label] += np.bincount(chosen, minlength=_PROBABILITY_STEPS + 1)

    def summary(self) -> PartSummary:
        """Figures of the written rows."""
        seen = np.flatnonzero(self._counts.sum(axis=0))
        counts = ScoreCounts(
            (seen / _PROBABILITY_STEPS).astype(np.float32),
            self._counts[1, seen].astype(np.uint64),
            self._counts[0, seen].astype(np.uint64),
        )
        best = counts.result()
        return PartSummary(self._name, best.examples, best.positives, best.auc, best.logloss)


def _pairs_of_digits() -> NDArray[np.uint32]:
    """Four hexadecimal digits as ASCII for each 16-bit number, as one 32-bit word in memory order."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    numbers = np.arange(1 << 16)
    text = np.stack([digits[(numbers >> shift) & 15] for shift in (12, 8, 4, 0)], axis=1)
    return np.ascontiguousarray(text).view(np.uint32)[:, 0]


_FOUR_DIGITS = _pairs_of_digits()


def _hex_column(ranks: NDArray[np.int64], nulls: NDArray[np.bool_], number: int) -> pa.Array:
    """Eight hexadecimal digits per rank, distinct within a field, as an Arrow string array.

    Every step below maps 32 bits one to one: odd factors and xors with own higher bits.
    """
    bits = ranks.astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32((number * 0x61C88647) & 0xFFFFFFFF)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x85EBCA6B)
    bits ^= bits >> np.uint32(13)
    text = np.empty((ranks.size, 2), np.uint32)
    text[:, 0] = _FOUR_DIGITS[bits >> np.uint32(16)]
    text[:, 1] = _FOUR_DIGITS[bits & np.uint32(0xFFFF)]
    null_count = int(np.count_nonzero(nulls))
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if null_count else None
    offsets = pa.py_buffer(np.arange(0, 8 * ranks.size + 1, 8, dtype=np.int32))
    return pa.StringArray.from_buffers(ranks.size, offsets, pa.py_buffer(text), valid, null_count)
