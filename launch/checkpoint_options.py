"""Arguments of ``pslib checkpoint ...``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

__all__ = ["add_checkpoint"]


def add_checkpoint(commands: Any, command: Callable[[Any, str, str, str], argparse.ArgumentParser]) -> None:
    """Add the command and its actions; ``command`` makes a parser from (parsers, name, function, help)."""
    parser = commands.add_parser(
        "checkpoint", help="list, verify, compare or export checkpoints", description="Look into checkpoints."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    where = "a checkpoint, or a folder whose newest numbered one is meant; s3://, gs:// and hdfs:// too"
    one = command(actions, "ls", "checkpoint_ls", "list the checkpoints in a folder and below it")
    one.add_argument("folder", metavar="FOLDER", help="a folder; s3://, gs:// and hdfs:// too")
    _add_json(one)
    one = command(
        actions,
        "verify",
        "checkpoint_verify",
        "read every byte; exit code 64 when one is not as it was written",
    )
    one.add_argument("path", metavar="PATH", help=where)
    _add_json(one)
    one = command(
        actions, "diff", "checkpoint_diff", "say which rows and dense parameters differ, and how far"
    )
    one.add_argument("a", metavar="A", help=where)
    one.add_argument("b", metavar="B", help="another")
    _add_json(one)
    one = command(actions, "export", "checkpoint_export", "write a file a table and server, for other tools")
    one.add_argument("path", metavar="PATH", help=where)
    one.add_argument("out", metavar="OUT", help="folder for the files")
    one.add_argument(
        "--parquet", action="store_true", required=True, help="as Parquet, the one format there is"
    )
    one.add_argument("--state", action="store_true", help="with the optimizers' numbers")
    one.add_argument(
        "--columns", action="store_true", help="a column a float (v_0, v_1, ...) in place of lists"
    )
    one.add_argument("--overwrite", action="store_true", help="replace files that exist")
    _add_json(one)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")
