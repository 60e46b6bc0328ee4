"""Texts of values: of numbers, of times, of truth values and of missing ones."""

from __future__ import annotations

import re

INTEGER = r"0|-?[1-9]\d{0,19}"
"""A whole number as it is written in one way alone: no 007, no +7, no 7.0."""
WHOLE = r"\s*[+-]?\d+\s*"
NUMBER = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
INFINITE = r"(?i)\s*[+-]?inf(inity)?\s*"
COMMA_DELIMITER, COMMA = ";", r"(\s*[+-]?\d+),(\d+\s*)"
"""Delimiter of files in which 1,5 is a number, as Excel writes them in many countries, and its pattern."""
WHOLE_FLOAT = r"\s*[+-]?\d+\.0*\s*"
"""A whole number with a point, as pandas writes ids among which one is missing."""
ALMOST = r"\s*[+-]?[$€£¥]?\s?(\d+|\d{1,3}([,.' _]\d{3})+)([.,]\d*)?\s?[%$€£¥kKmM]?\s*"
"""Texts of numbers with thousands separators, a decimal comma, a currency or a percent sign."""

OTHER_TIME = "time of another form"
"""Kind of times that are not read as such: in 03/04/2026 either number may be the month."""
TEXT_KINDS = {
    "number": f"({NUMBER}|{ALMOST})",
    "time": r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?\s?(Z|UTC|[+-]\d\d:?\d\d)?)?",
    OTHER_TIME: r"\d{1,2}[./]\d{1,2}[./]\d{4}([T ,]+\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?)?",
    "truth value": r"(?i:true|false|t|f|yes|no|y|n)",
}
"""Patterns of what the strings of a column may be besides names."""

MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
"""Texts for a missing number: those of `pandas.read_csv` by default.

In a column of strings they are strings: NA is a country.
"""

NULLS = ("", r"\N")
"""Texts for a missing value in every column: the empty cell, and the null of Hive, MySQL and PostgreSQL."""


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches the whole text."""
    return re.fullmatch(pattern, text) is not None
