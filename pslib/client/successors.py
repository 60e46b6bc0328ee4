"""What a client does when another process stands for a server: ask what it knows, then go on with it."""

from __future__ import annotations

import logging

from pslib.client.endpoint import Endpoint, Pending
from pslib.client.member import MemberHandle
from pslib.errors import PslibError
from pslib.protocol.messages import Message, Missing, Result
from pslib.table.partition_map import PartitionMap

__all__ = ["meet_successors"]

log = logging.getLogger("pslib")


def meet_successors(endpoint: Endpoint, member: MemberHandle, old: PartitionMap, new: PartitionMap) -> None:
    """Redirect what waits for servers that have a new address, after a question what they know.

    The question comes first: the pushes after it say below which number everything is acknowledged, and a
    server takes that for known.
    """
    now_s = endpoint.clock.now_s()
    for rank, (before, after) in enumerate(zip(old.addresses, new.addresses, strict=False)):
        if not before or not after or before == after:
            continue
        question = endpoint.session.acknowledged.question(rank) if endpoint.session else None
        if question is not None:
            pending = endpoint.ask(after, question)
            _report_when_known(endpoint, member, rank, question.streams.size, pending)
        count = endpoint.requests.redirect(now_s, before, after)
        log.info("pslib: server %d is at %s now, after %s; %d requests go there", rank, after, before, count)


def _report_when_known(
    endpoint: Endpoint, member: MemberHandle, server: int, asked: int, pending: Pending[Message]
) -> None:
    def known() -> None:
        try:
            answer = pending.wait(0)
            unknown = int(answer.values["unknown"]) if isinstance(answer, Result) else 0
            if unknown:
                log.error("pslib: server %d forgot %d of the last %d pushes", server, unknown, asked)
                report = Missing(member.rank, member.incarnation, server, unknown, asked)
                endpoint.ask(member.coordinator, report)
        except PslibError as error:  # it has gone again; its successor is asked
            log.info("pslib: server %d did not say what it knows: %s", server, error)

    pending.on_done(known)
