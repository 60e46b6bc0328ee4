"""Turns that are compiled, of links that can have them: sockets whose small frames need no pyzmq."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from cython_ext.short_calls import ShortCalls
from cython_ext.short_requests import ShortRequests
from cython_ext.short_turns import ShortAnswers, ShortServing
from pslib.transport.link import ClientLink, ServerLink
from pslib.transport.router import Router
from pslib.transport.zmq_link import ZmqClientLink, ZmqServerLink

__all__ = ["lanes_of", "listen_short", "short_answers", "short_serving"]

Lock = AbstractContextManager[Any]


def short_serving(
    link: ServerLink,
    lock: Lock,
    requests: ShortRequests,
    thread: Any,
    failed: Callable[[list[Any], Exception], Any],
) -> ShortServing | None:
    """What answers short requests from a link, under the lock that guards it; see there.

    None: it is no such link, or its peers have roles, which are looked at message by message.
    """
    return ShortServing(link, lock, requests, thread, failed) if _takes_frames(link) else None


def short_answers(link: ClientLink, lock: Lock, calls: ShortCalls | None) -> ShortAnswers | None:
    """What takes answers to short calls from a link; None: it is no such link, or there are no such calls."""
    if calls is None or not (isinstance(link, ZmqClientLink) and _takes_frames(link)):
        return None
    return ShortAnswers(link, lock, calls)


def listen_short(link: ServerLink) -> ServerLink:
    """A link to which clients of this machine may begin lanes, if it can have them."""
    if isinstance(link, ZmqServerLink):
        link.listen_short()
    return link


def lanes_of(link: ClientLink) -> Mapping[str, bytes] | None:
    """Peers that have lanes, as they come and go; None: the link can have none."""
    return link.lanes.ways if isinstance(link, ZmqClientLink) and link.lanes is not None else None


def _takes_frames(link: object) -> bool:
    return isinstance(link, Router) and link.frames is not None
