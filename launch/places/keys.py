"""Keys of a run, and ``pslib keys``, which manages a folder of keys.

A process gets its key in the first line of its standard input, never in an argument, in the environment or in
a file of the machine that it runs on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pslib.errors import EXIT_DONE, ConfigurationError

if TYPE_CHECKING:
    from pslib.transport import Keys

__all__ = ["add_keys_options", "keys_of_run", "run_keys"]


def keys_of_run(
    folder: str | None, open_addresses: Sequence[str], insecure: bool
) -> Mapping[str, Keys] | None:
    """Return the keys of a run by role; None means no encryption.

    Parameters
    ----------
    folder : str or None
        Folder of keys, made by ``pslib keys make``.
    open_addresses : sequence of str
        Addresses of coordinator and servers that other machines reach. If there are any, keys are made for
        the run only.
    insecure : bool
        Whether to run without encryption on such addresses.

    Raises
    ------
    ConfigurationError
        When encryption is both requested and forbidden, or the folder has no keys.
    """
    if folder is not None and insecure:
        raise ConfigurationError("--keys encrypts and --insecure-network does not: leave one of them out")
    if folder is None and (insecure or not open_addresses):
        return None
    from pslib.transport.keys import make_keys, read_folder

    return make_keys() if folder is None else read_folder(folder)


def add_keys_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pslib keys``."""
    parser.add_argument(
        "action", choices=("make", "add", "remove"), help="make a folder; add or remove one key"
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of keys")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the key to add or remove")
    parser.add_argument(
        "--role",
        default="reader",
        metavar="ROLE",
        help="of a key to add: server, trainer, reader or admin (default: reader)",
    )


def run_keys(options: argparse.Namespace) -> int:
    """Run ``pslib keys``: print the files that now exist, never their contents.

    Raises
    ------
    ConfigurationError
        When a key to make or add exists already, or a key to remove does not exist.
    """
    from pslib.transport.keys import add_key, make_keys, remove_key, write_keys

    if (options.name is None) != (options.action == "make"):
        raise ConfigurationError("pslib keys: expected make DIR, add DIR NAME or remove DIR NAME")
    if options.action == "make":
        made = make_keys()
        write_keys(options.folder, made)
        for role in made:
            print(f"{Path(options.folder) / role}.keys")
    elif options.action == "add":
        print(f"{add_key(options.folder, options.name, options.role)}: servers that start now know it")
    else:
        remove_key(options.folder, options.name)
        print(f"removed {options.name}: servers that start now refuse it")
    return EXIT_DONE
