"""Arguments of ``pslib recommend`` and ``pslib vectors``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

__all__ = ["add_retrieval"]


def add_retrieval(
    commands: Any,
    command: Callable[[Any, str, str, str], argparse.ArgumentParser],
    add_job: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add both commands; ``command`` makes a parser from (parsers, name, function, help)."""
    recommend = command(commands, "recommend", "recommend", "write the best items of each example")
    vectors = command(commands, "vectors", "vectors", "write the vectors of items or of queries")
    for parser in (recommend, vectors):
        add_job(parser)
        parser.add_argument("--checkpoint", required=True, metavar="DIR", help="what a run has saved")
        parser.add_argument("--out", required=True, metavar="DIR", help="folder for the Parquet files")
    recommend.add_argument(
        "--data", action="append", metavar="PATH", help="examples, in place of data.test; may be repeated"
    )
    recommend.add_argument("-k", type=int, default=20, metavar="N", help="items an example (default 20)")
    recommend.add_argument(
        "--approximate", action="store_true", help="by a graph of the items' vectors; needs faiss"
    )
    vectors.add_argument(
        "--data",
        action="append",
        metavar="PATH",
        help="in place of data.items, or with --side query of data.test; may be repeated",
    )
    vectors.add_argument("--side", choices=("item", "query"), default="item", help="of which (default item)")
