"""Arguments of ``pslib forget``."""

from __future__ import annotations

import argparse

__all__ = ["add_forget"]


def add_forget(parser: argparse.ArgumentParser) -> None:
    """Keys, the table, and where to forget them."""
    parser.add_argument(
        "keys", nargs="*", metavar="KEY", help="FIELD=VALUE of the data, or a key itself (123 or 0x7b)"
    )
    parser.add_argument("--from", dest="file", metavar="FILE", help="more of them, one a line")
    parser.add_argument("--table", required=True, metavar="T", help="the table; a model has one, embedding")
    parser.add_argument(
        "--cluster", metavar="WHERE", help="a running cluster: its run's folder, or tcp://host:port"
    )
    parser.add_argument("--cluster-id", metavar="ID", help="of the cluster at an address")
    parser.add_argument("--keys", dest="key_file", metavar="FILE", help="an admin's or a trainer's key of it")
    parser.add_argument(
        "--checkpoints", action="append", default=[], metavar="DIR", help="a checkpoint, or a folder of some"
    )
    parser.add_argument("--config", metavar="CONFIG", help="a job file, for its schema (FIELD=VALUE)")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")
