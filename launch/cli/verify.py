"""`pslib verify`: its arguments."""

from __future__ import annotations

import argparse

__all__ = ["add_verify"]

TOLERANCE = 0.002
"""Tolerance of AUC and log loss: the size of the difference between two seeds of one training."""


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pslib verify``, beside those of every job."""
    parser.add_argument("--trainers", type=int, metavar="N", help="in place of cluster.trainers")
    parser.add_argument("--kill", choices=("server", "trainer", "coordinator"), help="kill -9 one on the way")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="train N times (default 1)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help=f"default {TOLERANCE}; see docs/guide/train.md",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of all runs (default: the file's, and -verify)")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier runs in that folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")
