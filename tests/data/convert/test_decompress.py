"""Packed text is read whole or refused, and what is no text is refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.convert.convert import convert_criteo, convert_csv
from pslib.errors import DataError
from tests.data.convert.test_convert import criteo_line, written


def streamed(codec: str) -> Callable[[bytes], bytes]:
    def pack(text: bytes) -> bytes:
        packed = pa.BufferOutputStream()
        with pa.CompressedOutputStream(packed, codec) as file:
            file.write(text)
        return packed.getvalue().to_pybytes()

    return pack


def skipped(size: int, first: bytes = b"\x50") -> bytes:
    """A frame that readers of zstd and LZ4 skip."""
    return first + b"\x2a\x4d\x18" + size.to_bytes(4, "little") + b"\x28\xb5" * (size // 2)


PACKED = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda text: pa.Codec("zstd").compress(text, asbytes=True),
    "lz4": streamed("lz4"),
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_and_plain_text_give_the_same(tmp_path, out, kind):
    text = "\n".join(criteo_line(str(i % 2)) for i in range(50)) + "\n"
    convert_criteo(written(tmp_path, text), out)
    packed = written(tmp_path, PACKED[kind](text.encode()), "in.packed")
    convert_criteo(packed, tmp_path / "packed.parquet")
    assert pq.read_table(tmp_path / "packed.parquet").equals(pq.read_table(out))


@pytest.mark.parametrize("kind", PACKED)
def test_packed_text_that_is_cut_is_refused(tmp_path, out, kind):
    text = "".join(criteo_line(words=[f"{i * j:08x}" for j in range(26)]) + "\n" for i in range(500))
    packed = PACKED[kind](text.encode())
    with pytest.raises(
        DataError, match=rf"in.txt: the {kind} data is cut or damaged .*; fetch the file again"
    ):
        convert_criteo(written(tmp_path, packed[: len(packed) // 2]), out)


HEAD, TAIL = b"label,a\n" + b"1,2\n" * 30_000, b"0,3\n" * 30_000


@pytest.mark.parametrize("kind", PACKED)
def test_all_streams_of_a_packed_file_are_read(tmp_path, out, kind):
    head, none, tail = (PACKED[kind](text) for text in (HEAD, b"", TAIL))
    assert convert_csv(written(tmp_path, head + none + tail + none), out).rows == 60_000


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
@pytest.mark.parametrize("size", [0, 4, 600, 1 << 20])
def test_frames_that_are_to_be_skipped_are_skipped(tmp_path, out, kind, size):
    """pzstd begins with such a frame, and RFC 8878 allows them anywhere."""
    one, other = skipped(size), skipped(size, b"\x5f")
    packed = one + other + PACKED[kind](HEAD) + one + PACKED[kind](TAIL) + other
    assert convert_csv(written(tmp_path, packed), out).rows == 60_000
    with pytest.raises(DataError, match="expected a header and rows, got an empty file"):
        convert_csv(written(tmp_path, one + other), out, overwrite=True)
    with pytest.raises(DataError, match=f"the {kind} data is cut or damaged"):
        convert_csv(written(tmp_path, packed + one[:-1]), out, overwrite=True)


def test_lzma_without_xz_around_it_is_read(tmp_path, out):
    assert convert_csv(written(tmp_path, lzma.compress(HEAD, lzma.FORMAT_ALONE)), out).rows == 30_000


def tar_of(text: bytes, kind: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=kind) as file:
        entry = tarfile.TarInfo("a.csv")
        entry.size = len(text)
        file.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def zip_of(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        if text:
            file.writestr("a.csv", text)
    return packed.getvalue()


def parquet_of() -> bytes:
    packed = pa.BufferOutputStream()
    pq.write_table(pa.table({"label": [0, 1]}), packed)
    return packed.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(
            (tar_of(HEAD, kind), "got a tar archive; unpack it")
            for kind in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT)
        ),
        (zip_of(HEAD), "got a zip archive; unpack it"),
        (zip_of(b""), "got a zip archive; unpack it"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "got a 7z archive; unpack it"),
        (b"\x1f\x9d\x90", "got what compress has packed; unpack it"),
        (b"\x02\x21\x4c\x18", "got LZ4 of the legacy format; unpack it"),
        (b"\xff\x06\0\0sNaPpY", "got what Snappy has packed; unpack it"),
        (parquet_of(), "this is a Parquet file already"),
        (b"Obj\x01\x04\x14avro.codec\0", "got Avro; write it as text or Parquet"),
        (b"ARROW1\0\0", "got Arrow IPC; write it as text or Parquet"),
        ("label,a\n".encode("utf-16"), "expected UTF-8, got UTF-16"),
    ],
)
def test_what_is_no_text_is_named_also_where_it_is_packed(tmp_path, out, content, said):
    for kind, pack in {"": bytes, **PACKED}.items():
        with pytest.raises(DataError, match=re.escape(f"in.txt: {f'in {kind}: ' if kind else ''}")) as caught:
            convert_csv(written(tmp_path, pack(content)), out)
        assert said in str(caught.value)
        if kind:
            with pytest.raises(DataError, match=f"in {kind}: expected text, got gzip; unpack it"):
                convert_csv(written(tmp_path, pack(gzip.compress(HEAD))), out)


def test_zeros_between_streams_of_xz_are_passed_over(tmp_path, out):
    zeros = b"\0" * 131_072
    packed = PACKED["xz"](HEAD) + zeros + PACKED["xz"](TAIL) + zeros
    assert convert_csv(written(tmp_path, packed), out).rows == 60_000


@pytest.mark.parametrize("kind", PACKED)
def test_a_damaged_stream_does_not_end_a_packed_file(tmp_path, out, kind):
    head, tail = PACKED[kind](HEAD), PACKED[kind](TAIL)
    turned = bytes([tail[0] ^ 1])
    damages = {
        "its first byte": turned + tail[1:],
        "its first byte, and a sound one after it": turned + tail[1:] + tail,
        "cut": tail[: len(tail) // 2],
        "cut in its head": tail[:3],
        "one byte is missing": tail[:-1],
        "garbage after the first": b"garbage",
        "garbage after the second": tail + b"g",
    }
    if kind == "xz":
        damages |= {"three zeros": b"\0\0\0" + tail, "three zeros at the end": tail + b"\0\0\0"}
    for what, rest in damages.items():
        with pytest.raises(DataError, match=f"the {kind} data is cut or damaged .*; fetch the file again"):
            raise AssertionError(what, convert_csv(written(tmp_path, head + rest), out, overwrite=True))
        assert not out.exists()
