"""Checkpoint chains: a full checkpoint and the increments after it.

An increment names its predecessor, a checkpoint in a sibling folder, and the predecessor's token. Every save
makes a new token, so a replaced link of a chain is detected.
"""

from __future__ import annotations

from dataclasses import dataclass

from pslib.checkpoint.manifest import Manifest, read_manifest
from pslib.errors import CheckpointCorruptError
from pslib.storage import below, parent_and_name, place_of, shown

__all__ = ["Link", "chain_of", "sibling"]

LINKS_MAX = 1001


@dataclass(frozen=True, slots=True)
class Link:
    """Checkpoint of a chain."""

    path: str
    manifest: Manifest


def chain_of(path: str) -> list[Link]:
    """Return the chain of ``path``: the full checkpoint, then the increments up to ``path``, in order.

    Raises
    ------
    CheckpointError
        If a link is missing.
    CheckpointCorruptError
        If a link is not the checkpoint that the next one follows.
    """
    place = place_of(path)
    links = [Link(place, read_manifest(place))]
    while increment := links[0].manifest.increment:
        if len(links) > LINKS_MAX:
            raise CheckpointCorruptError(f"{shown(path)}: more than {LINKS_MAX} increments follow each other")
        before = sibling(links[0].path, str(increment["of"]))
        link = Link(before, read_manifest(before))
        if link.manifest.cut.get("token") != increment["token"]:
            raise CheckpointCorruptError(
                f"{shown(links[0].path)}: an increment of {increment['of']}, where another checkpoint stands "
                "than the one that it was made after"
            )
        _check_same_tables(link, links[0])
        links.insert(0, link)
    return links


def _check_same_tables(before: Link, link: Link) -> None:
    tables = {table["name"]: table for table in before.manifest.tables}
    for table in link.manifest.tables:
        if table != tables.get(table["name"], table):
            raise CheckpointCorruptError(
                f"{shown(link.path)}: an increment whose table {table['name']!r} is not described as in "
                f"{shown(before.path)}"
            )


def sibling(path: str, name: str) -> str:
    """Path of a sibling folder."""
    return below(parent_and_name(path)[0], name)
