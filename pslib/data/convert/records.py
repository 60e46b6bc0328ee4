"""Record reader for text files: bounded pieces, with bad records rejected by line number and reason.

A converter provides `parse`, which turns the text of some records into a table or raises. A piece of 4 MiB is
parsed at once. Only if that fails, halves are tried, down to the single records at fault. So the parser alone
defines validity, and valid files have no extra cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from pslib.data.convert.decompress import Damaged, Unpacked, opened
from pslib.errors import DataError
from pslib.text import counted, cut, printable

PIECE_BYTES = 4 << 20  # read at once: large enough for Arrow's parser to be fast, small beside any memory
RECORD_BYTES_MAX = 16 << 20  # the longest line; a longer one means that this is not a text file of records
QUOTED_BYTES_MAX = 1 << 20  # a quote must close within this, or one stray quote would swallow the file
EARLY_LINES = 100_000  # minimum base of the share before the end: one bad line of ten proves nothing
REASON_CHARS = 500  # a reason quotes a value, and a record may have 16 MiB; an error shows half of three

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Rejected record.

    Attributes
    ----------
    line : int
        1-based number of its first line.
    reason : str
    text : bytes
        As in the file, without the newline at its end.
    """

    line: int
    reason: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Complete records of a file.

    Attributes
    ----------
    raw : bytes
        Their text, ending in a newline.
    first_line : int
        1-based number of the first line.
    lines : int
        Number of lines.
    records : list of (line number, text) or None
        Set if records may span lines (quotes); else every line is a record.
    broken : sequence of RejectedRecord
        Lines that are not records.
    comment : bytes or None
        Lines that begin with it count as blank.
    """

    raw: bytes
    first_line: int
    lines: int
    records: list[tuple[int, bytes]] | None = None
    broken: Sequence[RejectedRecord] = ()
    comment: bytes | None = None

    @property
    def may_have_blank(self) -> bool:
        """True if a line may be blank or a comment, by the beginnings of lines."""
        begins = rb"\s" + (b"|" + re.escape(self.comment) if self.comment else b"")
        found = re.match(begins, self.raw) or re.search(rb"\n(?:" + begins + rb")", self.raw)
        return found is not None

    def split(self) -> list[tuple[int, bytes]]:
        """(line number, text) of all records, excluding blank lines and comments."""
        if self.records is not None:
            return self.records
        found = enumerate(self.raw[:-1].split(b"\n"), self.first_line)
        said = [(number, line) for number, line in found if line.strip()]
        return [item for item in said if not self.comment or not item[1].lstrip().startswith(self.comment)]


@dataclass(frozen=True, slots=True)
class Parsed:
    """Parser output for some records.

    Attributes
    ----------
    table : pyarrow.Table
        One row per record.
    bad : list of (row, reason)
        Well-formed rows that are invalid examples, such as a label of 2.
    """

    table: Any
    bad: list[tuple[int, str]]


Parser = Callable[[bytes], Parsed]


class Rejects:
    """Rejects file: line number, reason and record, tab-separated; created at the first reject.

    Parameters
    ----------
    path : Path
        Path of the rejects file.
    source : str
        Name of the input file, for messages.
    share_max : float
        A reject beyond this share of the lines read so far, and of 100,000, raises.
    advice : str
        Remedy where there are too many.

    Attributes
    ----------
    lines : int
        Lines read so far; the caller counts them.
    count : int
        Records rejected.
    first : list of RejectedRecord
        The first three.
    """

    def __init__(self, path: Path, source: str, share_max: float, advice: str = "") -> None:
        self._path, self._source, self._share_max, self._advice = path, source, share_max, advice
        self._file: IO[bytes] | None = None
        self.lines = self.count = 0
        self.first: list[RejectedRecord] = []

    def add(self, record: RejectedRecord) -> None:
        """Write one reject; raise DataError if there are too many."""
        record = replace(record, reason=cut(printable(record.reason), REASON_CHARS))
        if self._file is None:
            self._file = self._path.open("wb")
        text = record.text.replace(b"\n", b"\\n")
        self._file.write(b"%d\t%s\t%s\n" % (record.line, record.reason.encode(), text))
        self.count += 1
        if len(self.first) < 3:
            self.first.append(record)
        self.judge(max(self.lines, EARLY_LINES))

    def judge(self, lines: int) -> None:
        """Raise DataError if more than the allowed share of ``lines`` were rejected."""
        if self.count <= self._share_max * lines:
            return
        shown = "; ".join(f"line {one.line}: {cut(one.reason, REASON_CHARS // 2)}" for one in self.first)
        raise DataError(
            f"{self._source}: {counted(self.count, 'bad record')} in the first "
            f"{counted(self.lines, 'line')}, more than the share of {self._share_max:g} that is allowed, so "
            f"nothing was written: {shown}"
            f"{'; ...' if self.count > len(self.first) else ''}; {self._advice}"
        )

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


def pieces(source: Path, quoted_by: bytes | None = None, comment: bytes | None = None) -> Iterator[Piece]:
    """Read a file in pieces.

    Parameters
    ----------
    source : Path
        Plain text, or packed as `opened` reads it. A byte order mark is skipped.
    quoted_by : bytes, optional
        The delimiter, if a field that begins with ``"`` may contain newlines; default: one record per line.
    comment : bytes, optional
        Prefix of comment lines.

    Yields
    ------
    Piece

    Raises
    ------
    DataError
        If the file can't be read or is not text, compressed data is truncated, damaged or followed by other
        bytes, or a record is longer than 16 MiB.
    """
    try:
        with opened(source) as file:
            yield from _whole_records(file, source, quoted_by, comment)
    except Damaged as error:
        raise DataError(f"{source}: {error}; fetch the file again") from error
    except OSError as error:
        raise DataError(f"{source}: can't be read: {error.strerror or error}") from error


def _whole_records(
    file: IO[bytes] | Unpacked, source: Path, quoted_by: bytes | None, comment: bytes | None
) -> Iterator[Piece]:
    rest, line = b"", 1
    pattern = _record_pattern(quoted_by) if quoted_by is not None else None
    while True:
        block = file.read(PIECE_BYTES)
        text = rest + block
        if line == 1:
            text = text.removeprefix(_BOM)
        if not block and text and not text.endswith(b"\n"):
            text += b"\n"
        records: list[tuple[int, bytes]] | None = None
        broken: list[RejectedRecord] = []
        end = text.rfind(b"\n") + 1
        if pattern is not None and b'"' in text:
            records, broken, end = _quoted_records(text, line, pattern, last=not block)
        raw, rest = text[:end], text[end:]
        if raw:
            lines = raw.count(b"\n")
            yield Piece(raw, line, lines, records, broken, comment)
            line += lines
        if not block:
            return
        if len(rest) > RECORD_BYTES_MAX:  # a quoted record ends long before
            raise DataError(
                f"{source}: line {line} is longer than {RECORD_BYTES_MAX >> 20} MiB: expected a text file "
                "with a record a line"
            )


def _record_pattern(delimiter: bytes) -> re.Pattern[bytes]:
    """Pattern of one record with its newline; a quote opens a field only at its beginning, as in Arrow."""
    mark = re.escape(delimiter)
    field = rb'(?:"(?:[^"]++|"")*+"(?=[\r\n' + mark + rb'])|(?!")[^\n' + mark + rb"]*+)"
    return re.compile(field + b"(?:" + mark + field + rb")*+\r?\n")


def _quoted_records(
    text: bytes, first_line: int, pattern: re.Pattern[bytes], *, last: bool
) -> tuple[list[tuple[int, bytes]], list[RejectedRecord], int]:
    """Records of ``text``, lines with an unclosed quote, and the end of the last complete record."""
    records: list[tuple[int, bytes]] = []
    broken: list[RejectedRecord] = []
    start, line = 0, first_line
    while (newline := text.find(b"\n", start)) >= 0:
        found = pattern.match(text, start)
        if found:
            record = text[start : found.end() - 1]
            if record.strip():
                records.append((line, record))
            start, line = found.end(), line + record.count(b"\n") + 1
        elif last or len(text) - start > QUOTED_BYTES_MAX:
            reason = "a quoted value does not end in a quote before the next delimiter"
            broken.append(RejectedRecord(line, reason, text[start:newline]))
            start, line = newline + 1, line + 1
        else:
            break
    return records, broken, start


def parse_piece(piece: Piece, parse: Parser, rejects: Rejects) -> tuple[list[Any], int]:
    """Parse a piece to tables, count blank lines, and write bad records to ``rejects``.

    Parameters
    ----------
    piece : Piece
    parse : callable
        Maps bytes to `Parsed`; raises pyarrow.ArrowInvalid or ValueError.
    rejects : Rejects

    Returns
    -------
    tables : list of pyarrow.Table
        In order.
    blank_lines : int
    """
    for record in piece.broken:
        rejects.add(record)
    # Blank lines give no row: with one, a line that holds two records would pass the count of rows.
    if piece.records is None and not piece.may_have_blank:
        parsed = _attempt(piece.raw, piece.lines, parse)
        if isinstance(parsed, Parsed):
            return [_without_bad(parsed, piece.split, rejects)], 0
    records = piece.split()
    covered = sum(text.count(b"\n") + 1 for _, text in records) + len(piece.broken)
    return list(_by_halves(records, parse, rejects)), piece.lines - covered


def _attempt(raw: bytes, rows: int, parse: Parser) -> Parsed | str:
    try:
        parsed = parse(raw)
    except (pa.ArrowInvalid, ValueError) as error:  # ArrowInvalid is a ValueError; named for the reader
        return str(error).partition("\n")[0].replace("\t", " ")
    return parsed if parsed.table.num_rows == rows else _row_count_text(parsed.table.num_rows)


def _row_count_text(rows: int) -> str:
    """Reason for rejecting a line that gives ``rows`` rows."""
    return f"read as {rows} records: a stray carriage return or quote"


def _by_halves(records: Sequence[tuple[int, bytes]], parse: Parser, rejects: Rejects) -> Iterator[Any]:
    if not records:
        return
    parsed = _attempt(b"\n".join(text for _, text in records) + b"\n", len(records), parse)
    if isinstance(parsed, Parsed):
        yield _without_bad(parsed, lambda: records, rejects)
    elif len(records) == 1:
        rejects.add(RejectedRecord(records[0][0], parsed, records[0][1]))
    else:
        middle = len(records) // 2
        yield from _by_halves(records[:middle], parse, rejects)
        yield from _by_halves(records[middle:], parse, rejects)


def _without_bad(parsed: Parsed, records: Callable[[], Sequence[tuple[int, bytes]]], rejects: Rejects) -> Any:
    if not parsed.bad:
        return parsed.table
    texts = records()
    for row, reason in parsed.bad:
        rejects.add(RejectedRecord(texts[row][0], reason, texts[row][1]))
    bad = {row for row, _ in parsed.bad}
    return parsed.table.take(pa.array([row for row in range(len(texts)) if row not in bad], pa.int64()))
