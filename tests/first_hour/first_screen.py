"""First screen of the README, taken apart: its commands, its script, its rows of a CSV."""

from __future__ import annotations

import re
import shlex

from tests.support.processes.command import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
_FIRST = README.split("## The first hour")[1].split("\n## ")[0]


def _block(language: str, word: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", _FIRST, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return str(found)


COMMANDS = [shlex.split(line, comments=True) for line in _block("sh", "pslib describe").splitlines()]
SCRIPT = _block("python", "import pslib")
SHOWN_ROWS = _block("text", "click").splitlines()
