"""Lists in texts: the separator of texts such as ``Drama|Comedy``, found by their values.

Texts are lists if their number of parts varies and parts of later places also begin other texts. In a name of
several words (``New York``) or an id of several parts (``US|web|7``) each place has words of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXTS_MAX, BYTES_MAX = 4_096, 128 << 10
"""Texts of a column that are looked at, and their bytes."""
PART_TEXTS = 1_024
"""Most of them from one part of the data, which may be sorted."""
TEXTS_MIN = 8
"""With fewer different texts than these, each may be a word of its own."""
SEPARATORS = {"|": 0.005, ";": 0.005, ", ": 0.2, ",": 0.2, " ": 0.8}
"""Separators, and the least share of later parts that also begin a text: prose has commas and blanks."""
SHARE_OF_NUMBERS = 0.005
"""The same where all parts are whole numbers."""
SHARE_OF_EQUAL_LENGTHS = 0.5
"""The same where all texts have equally many parts, as ids of several parts have."""
SEVERAL_MIN = 0.05
"""Least share of texts of more than one part."""


@dataclass(frozen=True, slots=True)
class TextLists:
    """Lists that texts hold: their separator, and mean number of elements of the texts looked at."""

    separator: str
    mean: float


class TextSample:
    """Some different texts of a column, to look for lists in."""

    def __init__(self) -> None:
        self._texts: pa.Array | None = None

    def __len__(self) -> int:
        return 0 if self._texts is None else len(self._texts)

    def add(self, texts: pa.Array) -> None:
        """Add some of these texts, until there are enough."""
        before = self._texts
        if not len(texts) or (
            before is not None and (len(before) >= TEXTS_MAX or before.nbytes >= BYTES_MAX)
        ):
            return
        some = texts.take(pa.array(np.arange(0, len(texts), -(-len(texts) // PART_TEXTS))))
        some = some.cast(pa.large_string()).drop_null()
        self._texts = pc.unique(some if before is None else pa.concat_arrays([before, some]))

    def lists(self) -> TextLists | None:
        """Return what lists the texts hold; None if they are names."""
        texts = self._texts
        if texts is None or len(texts) < TEXTS_MIN:
            return None
        found = (_divided(texts, separator, share) for separator, share in SEPARATORS.items())
        return next((one for one in found if one is not None), None)


def _divided(texts: pa.Array, separator: str, share: float) -> TextLists | None:
    lists = pc.split_pattern(texts, separator)
    lengths = pc.list_value_length(lists).to_numpy()
    if np.mean(lengths > 1) < SEVERAL_MIN:
        return None
    first = pc.list_element(lists.filter(pa.array(lengths > 0)), 0)
    starts = np.cumsum(lengths) - lengths
    is_later = np.ones(int(lengths.sum()), np.bool_)
    is_later[starts[lengths > 0]] = False
    if pc.all(pc.match_substring_regex(lists.flatten(), r"^\d*$")).as_py():
        share = SHARE_OF_NUMBERS
    later = lists.flatten().filter(pa.array(is_later))
    known = float(np.mean(pc.is_in(later, value_set=pc.unique(first)).to_numpy(zero_copy_only=False)))
    equal = lengths.min() == lengths.max()
    if known < (max(share, SHARE_OF_EQUAL_LENGTHS) if equal else share):
        return None
    return TextLists(separator, float(lengths.mean()))
