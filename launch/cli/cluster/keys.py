"""``pslib keys``: make and keep a folder of keys; files are printed, never their contents."""

from __future__ import annotations

from pathlib import Path

from launch.cli.command import FOLDER, argument, group, option
from pslib.errors import EXIT_DONE

folder_argument = argument("folder", "DIR", "the folder of keys", FOLDER)
name_argument = argument("name", "NAME", "name of the key")


@group("keys", "pslib keys make keys")
def keys_command() -> None:
    """Make and keep the keys of encrypted clusters."""


@keys_command.command("make", examples="pslib keys make keys")
@folder_argument
def make_command(folder: str) -> int:
    """Make a folder with a key of each role."""
    from pslib.transport.keys import make_keys, write_keys

    made = make_keys()
    write_keys(folder, made)
    for role in made:
        print(f"{Path(folder) / role}.keys")
    return EXIT_DONE


@keys_command.command("add", examples="pslib keys add keys dashboard --role reader")
@folder_argument
@name_argument
@option("--role", "ROLE", "of the key: server, trainer, reader or admin (default: reader)", default="reader")
def add_command(folder: str, name: str, role: str) -> int:
    """Add one more key, so that it can be removed alone."""
    from pslib.transport.keys import add_key

    print(f"{add_key(folder, name, role)}: servers that start now know it")
    return EXIT_DONE


@keys_command.command("remove", examples="pslib keys remove keys dashboard")
@folder_argument
@name_argument
def remove_command(folder: str, name: str) -> int:
    """Remove one key."""
    from pslib.transport.keys import remove_key

    remove_key(folder, name)
    print(f"removed {name}: servers that start now refuse it")
    return EXIT_DONE
