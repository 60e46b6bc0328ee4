"""Client side of failover: ask a server's successor what it knows, then redirect requests to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from pslib.client.endpoint import Endpoint
from pslib.client.membership import MemberHandle
from pslib.client.pending import Pending
from pslib.config import ClusterConfig
from pslib.errors import PslibError, ServerLeftError
from pslib.table.partition_map import PartitionMap
from pslib.table.tables import TableSpec
from pslib.wire.fields import Message
from pslib.wire.messages import Missing, Result, Setup

log = logging.getLogger(__name__)


class Failover:
    """Failover of one client to the successors of servers.

    Parameters
    ----------
    endpoint : Endpoint
    member : MemberHandle
    config : ClusterConfig
        Says whether servers may come back without their tables.

    Attributes
    ----------
    setup : Setup or None
        Description of our tables, for a server that may come back without them.
    """

    def __init__(self, endpoint: Endpoint, member: MemberHandle, config: ClusterConfig) -> None:
        self._endpoint, self._member = endpoint, member
        self._keeps = config.recovery == "partial"
        self.setup: Setup | None = None

    def remember(self, message: Setup, specs: Iterable[TableSpec]) -> None:
        """Keep the description of all our tables, with the initial values of the dense parameters."""
        if not self._keeps:
            return
        before = self.setup
        latest = before if before is not None and not message.dense_length else message
        models = [*(before.tables.get("models", ()) if before else ()), *message.tables.get("models", ())]
        tables = {"tables": [spec.to_dict() for spec in specs], "models": models}
        self.setup = replace(latest, tables=tables)

    def meet(self, old: PartitionMap, new: PartitionMap) -> None:
        """Redirect requests to servers that have a new address, after a `Witness` request to each.

        Where a server has left, requests to it end; its units have other owners by now.

        The `Witness` request comes first: later pushes say below which number everything is acknowledged, and
        a server takes that for known.
        """
        endpoint, now_s = self._endpoint, self._endpoint.clock.now_s()
        for rank, (before, after) in enumerate(zip(old.addresses, new.addresses, strict=False)):
            if before and not after:
                left = f"server {rank} at {before} has left the cluster, and had not answered; ask again"
                endpoint.end_waits_for(before, ServerLeftError(left))
            if not before or not after or before == after:
                continue
            if self.setup is not None:
                endpoint.ask(after, self.setup)
            acknowledged = endpoint.session.acknowledged if endpoint.session else None
            question = acknowledged.question(rank) if acknowledged else None
            if acknowledged and question:
                # Counted now: the successor may acknowledge pushes of its own before it answers.
                count = acknowledged.count(rank)
                self._report_when_known(rank, question.streams.size, count, endpoint.ask(after, question))
            moved = endpoint.requests.redirect(now_s, before, after)
            log.info(
                "pslib: server %d is at %s now, after %s; %d requests go there", rank, after, before, moved
            )
        endpoint.requests.are_here(filter(None, new.addresses))

    def _report_when_known(self, server: int, asked: int, count: int, pending: Pending[Message]) -> None:
        member = self._member

        def known() -> None:
            try:
                lost, of = self._lost(server, asked, count, pending.wait(0))
                if lost:
                    log.error("pslib: server %d forgot %d of the last %d pushes", server, lost, of)
                    member.report(Missing(member.rank, member.incarnation, server, lost, of))
            except PslibError as error:  # it has left again; its successor is asked
                log.info("pslib: server %d did not say what it knows: %s", server, error)

        pending.on_done(known)

    def _lost(self, server: int, asked: int, count: int, answer: Message) -> tuple[int, int]:
        """Return the number of pushes that a server has lost, and the number that it was asked about."""
        if not isinstance(answer, Result):
            return 0, asked
        moments, session = answer.values.get("began_with", ()), self._endpoint.session
        if not moments or session is None:
            return int(answer.values["unknown"]), asked
        with self._endpoint.lock:
            return session.acknowledged.lost(server, str(moments[0]), count)
