"""Parameters of a checkpoint: rows that stay in its files are those that servers load."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from pslib.checkpoint import commit, read_manifest
from pslib.checkpoint.arrow_files import batches_of, write_file
from pslib.checkpoint.manifest import ROWS, Folder, Manifest, open_folder
from pslib.checkpoint.rows import table_schema
from pslib.errors import CheckpointCorruptError
from pslib.scoring import LoadedParameters
from pslib.table.optimizers import Adagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.trainer.pipeline.dense import DenseLayout
from tests.checkpoint.test_increments import KEYS, Chain, write_chain
from tests.support.clients import client_of
from tests.support.tables.images import begin_image, end_image, files_of_image

LAYOUT = DenseLayout({"all": (6,)})
STORED = TableSpec("item", (PartSpec("w", 1, Adagrad()), PartSpec("v", 16, Adagrad())))


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return write_chain(tmp_path_factory.mktemp("chain"))


def opened(path: str) -> LoadedParameters:
    manifest = read_manifest(path)
    return LoadedParameters(path, manifest, manifest.specs["item"], LAYOUT)


@pytest.mark.parametrize("number", range(4))
def test_each_link_of_a_chain_has_the_rows_that_the_cluster_had(chain: Chain, number: int) -> None:
    parameters = opened(chain.path(number))
    assert parameters.count == chain.counts[number]
    assert np.array_equal(parameters.rows(KEYS), chain.rows[number])
    assert parameters.missing(KEYS) == KEYS.size - chain.counts[number]


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16", "int8"])
def test_rows_of_every_storage_type_are_exact(storage: str, tmp_path: Path) -> None:
    spec = replace(STORED, storage=storage)
    gradients = np.random.default_rng(0).standard_normal((KEYS.size, 17)).astype(np.float32)
    with client_of(partition_bits=5) as (client, _running):
        client.setup([spec], DenseSpec(6, Adagrad()), np.ones(6, np.float32))
        client.push({"item": (KEYS[:200], gradients[:200])}, np.ones(6, np.float32)).wait()
        expected = client.pull({"item": KEYS}, dense=True).wait()
        begin_image(client, tmp_path, "00000001", "", keep=False)
        dense = {"length": 6, "optimizer": Adagrad().to_dict(), "parameters": []}
        files = files_of_image(client, "00000001")
        commit(str(tmp_path), Manifest([spec.to_dict()], dense, files, 2))
        end_image(client, "00000001")
    parameters = opened(str(tmp_path))
    assert np.array_equal(parameters.rows(KEYS), expected.rows["item"])
    assert np.array_equal(parameters.dense["all"], expected.dense)


def test_a_changed_byte_of_any_file_is_refused(chain: Chain, tmp_path: Path) -> None:
    for file in sorted((chain.folder / "checkpoint-000001").glob("*.arrow")):
        place = tmp_path / file.stem
        shutil.copytree(file.parent, place)
        data = bytearray((place / file.name).read_bytes())
        data[len(data) // 2] ^= 1
        (place / file.name).write_bytes(data)
        with pytest.raises(CheckpointCorruptError, match="damaged"):
            opened(str(place))


def test_a_key_that_two_files_have_is_refused(chain: Chain, tmp_path: Path) -> None:
    """Checksums do not tell it: they are right."""
    shutil.copytree(chain.folder / "checkpoint-000001", tmp_path / "twice")
    path = str(tmp_path / "twice")
    manifest, folder = read_manifest(path), open_folder(path)
    first = manifest.files_of("item", ROWS)[0]
    schema = table_schema(manifest.specs["item"])
    sums, rows = write_file(
        folder.filesystem, folder.root, "item.0badcafe-009-0.arrow", schema, batches_of(path, first, schema)
    )
    again = replace(
        first,
        name="item.0badcafe-009-0.arrow",
        bytes=sums.bytes,
        crc32=sums.crc32,
        rows=rows,
        blocks=tuple(sums.blocks),
    )
    commit(path, replace(manifest, files=[*manifest.files, again]))
    with pytest.raises(CheckpointCorruptError, match="expected each key once"):
        opened(path)


def test_rows_stay_there_while_the_folder_is_saved_anew(chain: Chain, tmp_path: Path) -> None:
    shutil.copytree(chain.folder / "checkpoint-000001", tmp_path / "checkpoint")
    parameters = opened(str(tmp_path / "checkpoint"))
    shutil.rmtree(tmp_path / "checkpoint")
    assert np.array_equal(parameters.rows(KEYS), chain.rows[0])


@pytest.mark.parametrize("mapped", [True, False])
def test_rows_of_local_files_take_no_memory_of_their_own(
    mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, dim = 20_000, 16
    spec = TableSpec("item", (PartSpec("v", dim, Adagrad()),))
    keys = np.arange(1, rows + 1, dtype=np.uint64)
    with client_of(partition_bits=5) as (client, _running):
        client.setup([spec], DenseSpec(6, Adagrad()), np.ones(6, np.float32))
        client.push({"item": (keys, np.ones((rows, dim), np.float32))}, np.ones(6, np.float32)).wait()
        begin_image(client, tmp_path, "00000001", "", keep=False)
        dense = {"length": 6, "optimizer": Adagrad().to_dict(), "parameters": []}
        commit(str(tmp_path), Manifest([spec.to_dict()], dense, files_of_image(client, "00000001"), 2))
        end_image(client, "00000001")
    if not mapped:  # a file system that can't map, as that of an object store
        elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        monkeypatch.setattr("pslib.checkpoint.arrow_files.open_folder", lambda path: Folder(elsewhere, ""))
    before = pa.total_allocated_bytes()
    parameters = opened(str(tmp_path))
    grown = pa.total_allocated_bytes() - before
    assert parameters.count == rows
    assert (grown < rows * dim * 4 / 20) is mapped
