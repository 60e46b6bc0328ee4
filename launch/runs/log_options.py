"""Options of logs and restarts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslib.config import ClusterConfig

__all__ = ["add_durability", "durability_settings", "log_folder"]


def add_durability(parser: argparse.ArgumentParser) -> None:
    """Add the options to ``pslib launch``."""
    parser.add_argument(
        "--durability",
        choices=("memory", "log", "disk"),
        default="memory",
        help="what an acknowledged push survives: nothing, the end of its server, a loss of power",
    )
    parser.add_argument(
        "--recovery",
        choices=("log", "partial"),
        default="log",
        help="a lost server comes back from its log; or, where there is none, at the last checkpoint",
    )
    parser.add_argument(
        "--log", metavar="DIR", help="folder of the logs, where servers run (default: log below --out)"
    )
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="how often a process that dies is started again (default 3)"
    )


def durability_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Convert the options to arguments of `pslib.config.ClusterConfig`.

    Raises
    ------
    ConfigurationError
        When a log folder is given without logging, or is a URI.
    """
    from launch.job.sections import RESTARTS
    from pslib.errors import ConfigurationError
    from pslib.storage import check_local

    check_local("--log", options.log)
    if options.log and options.durability == "memory":
        raise ConfigurationError("--log: expected --durability log or disk with it; else nothing is logged")
    restarts = RESTARTS if options.restarts is None else options.restarts
    return {"durability": options.durability, "recovery": options.recovery, "restarts": restarts}


def log_folder(config: ClusterConfig, given: str | None, out: Path) -> str | None:
    """Return the folder of update logs and the coordinator's journal; None without logging."""
    if config.durability == "memory":
        return None
    return str(Path(given).absolute() if given else out.absolute() / "log")
