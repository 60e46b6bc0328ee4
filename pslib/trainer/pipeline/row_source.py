"""Row sources: supply the rows of a batch, and take its gradients.

The pipeline only uses the `RowSource` interface. Implementations are the servers (`ServerRows`), or a copy of
some of their rows in this process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.client import Client, PendingPull, PendingPush
from pslib.client.gradients import batch_counts
from pslib.client.session import Manner, Moment, PushName
from pslib.table.tables import TableSpec
from pslib.table.wire_format import FLOAT32, WireFormat
from pslib.trainer.collective import HeldLease
from pslib.trainer.pipeline.dense import DensePulls, ErrorFeedback
from pslib.trainer.pipeline.pace import LeasePlan
from pslib.wire.staleness import NOTHING_SEEN, Seen

__all__ = ["Gradients", "PendingRows", "PulledRows", "RowSource", "ServerRows"]


@dataclass(frozen=True, slots=True, eq=False)
class PulledRows:
    """Input of a step.

    Attributes
    ----------
    rows : (U, D) float32
        Rows of ``batch.keys``.
    dense : (length,) float32
        All dense parameters, see `pslib.trainer.pipeline.dense.DenseLayout`.
    seen : mapping
        From `Pulled`, for the push of the gradients.
    """

    rows: NDArray[np.float32]
    dense: NDArray[np.float32]
    seen: Seen


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """Result of a step: gradients of the mean loss in the shapes of `PulledRows`."""

    rows: NDArray[np.float32]
    dense: NDArray[np.float32]


class PendingRows(Protocol):
    """Pending rows of a batch."""

    def wait(self) -> PulledRows:
        """Wait for the rows and return them. Errors as for `Pending.wait`."""
        ...


class RowSource(Protocol):
    """Interface: rows out, gradients in; batches come in the order in which they are trained.

    Attributes
    ----------
    pushes_behind : bool
        Whether another thread may push a batch while the next one computes; else the computing thread pushes
        each before it waits for the rows of the next.
    """

    @property
    def pushes_behind(self) -> bool:
        """See the class."""
        ...

    def pull(self, batch: Batch, moment: Moment) -> PendingRows:
        """Request the rows of a batch; called in the puller's thread."""
        ...

    def push(
        self,
        batch: Batch,
        pulled: PulledRows,
        gradients: Gradients,
        name: PushName,
        moment: Moment,
        rate: float = 1.0,
    ) -> PendingPush | None:
        """Take a batch's gradients, see ``pushes_behind``; None when nothing is sent now.

        Learning rates are multiplied by ``rate``.
        """
        ...

    def flush(self, lease: HeldLease, plan: LeasePlan) -> PendingPush | None:
        """Send held-back pushes of a lease whose batches are all applied; called in the endpoint's thread.

        It must not wait. None when nothing is held back.
        """
        ...


@dataclass(frozen=True, slots=True)
class _ServerPull:
    table: str
    pending: PendingPull
    dense: DensePulls

    def wait(self) -> PulledRows:
        pulled = self.pending.wait()
        return PulledRows(pulled.rows[self.table], self.dense.arrived(pulled), pulled.seen)


class ServerRows:
    """Row source of async and ssp: each batch reads from the servers and pushes its gradients to them.

    Parameters
    ----------
    client : Client
    table : TableSpec
        The table that batches name.
    wire : WireFormat
        Wire types of rows, gradients and dense parameters.
    """

    pushes_behind = True

    def __init__(self, client: Client, table: TableSpec, wire: WireFormat = FLOAT32) -> None:
        self._client, self._table, self._wire = client, table, wire
        self._dense = DensePulls(client, wire)
        self._feedback = ErrorFeedback(client.session.dense_length, wire.dense)

    def pull(self, batch: Batch, moment: Moment) -> PendingRows:
        """Pull rows and all dense parameters."""
        return self.pull_keys(batch.keys, moment)

    def pull_keys(self, keys: NDArray[np.uint64], moment: Moment) -> PendingRows:
        """Pull some of the keys of a batch."""
        name = self._table.name
        pending = self._client.pull(
            {name: keys},
            step=moment.step,
            time_s=moment.time_s,
            rows_as=self._wire.rows,
            **self._dense.ask(),
        )
        return _ServerPull(name, pending, self._dense)

    def push(
        self,
        batch: Batch,
        pulled: PulledRows,
        gradients: Gradients,
        name: PushName,
        moment: Moment,
        rate: float = 1.0,
    ) -> PendingPush:
        """Push one message to every server."""
        return self._send(batch, gradients, name, moment, Manner(rate), pulled.seen)

    def _send(
        self,
        batch: Batch,
        gradients: Gradients,
        name: PushName,
        moment: Moment,
        manner: Manner,
        since: Seen = NOTHING_SEEN,
    ) -> PendingPush:
        table = self._table.name
        counts = batch_counts(batch) if self._table.takes_counts else None
        return self._client.push(
            {table: (batch.keys, gradients.rows)},
            self._feedback.packed(gradients.dense),
            name,
            step=moment.step,
            time_s=moment.time_s,
            shows={table: counts.shows} if counts else None,
            clicks={table: counts.clicks} if counts else None,
            gradients_as=self._wire.gradients,
            manner=manner,
            since=since,
        )

    def flush(self, lease: HeldLease, plan: LeasePlan) -> None:
        """Do nothing: no push is held back."""
        return
