"""Increments and what they follow: a full checkpoint and the increments after it are one chain.

An increment names the checkpoint that it follows, a folder beside its own, and that one's token, which every
save makes anew: so a chain of which a link was replaced is noticed.
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
    """One checkpoint of a chain."""

    path: str
    manifest: Manifest


def chain_of(path: str) -> list[Link]:
    """The full checkpoint under ``path`` and the increments up to it, in that order.

    Raises
    ------
    CheckpointError
        When a link is not there.
    CheckpointCorruptError
        When a link is not the one that the next was made after.
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
        links.insert(0, link)
    return links


def sibling(path: str, name: str) -> str:
    """A folder beside another one."""
    return below(parent_and_name(path)[0], name)
