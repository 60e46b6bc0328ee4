"""Client: pull, push and erase on all servers of a cluster, and the control calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.calls import PLAINLY, Manner, PushName
from pslib.client.endpoint import Endpoint
from pslib.client.failover import Failover
from pslib.client.gradients import by_table, check_push, checked_keys, moment_of, prepared
from pslib.client.load import FILE_PATIENCE_S, load_onto
from pslib.client.membership import FREE_RANK, Joined, MemberHandle, RankRequest, join
from pslib.client.pending import PendingPull, PendingPush
from pslib.client.session import ClientSession
from pslib.client.tables import all_of, files_of, set_up, setup_of, stats_of, tables_there
from pslib.clock import Clock
from pslib.config import Timing
from pslib.errors import ConfigurationError
from pslib.table.descriptions import check_tables
from pslib.table.partition_map import PartitionMap
from pslib.table.tables import DenseSpec, TableSpec
from pslib.table.wire_format import ROW_TYPES, check_type
from pslib.transport import Transport
from pslib.validation import checked
from pslib.wire.applied_pushes import record_salt
from pslib.wire.codec import Codec
from pslib.wire.dense_delta import KnownDense
from pslib.wire.fields import Message
from pslib.wire.messages import CLIENT_STREAMS, Load, Save, Setup, Stats
from pslib.wire.quantization import pack_gradients
from pslib.wire.staleness import NOTHING_SEEN, Seen

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]


class Client:
    """Trainer's handle on all servers.

    Parameters
    ----------
    transport : Transport
        Transport that reaches the cluster.
    coordinator, cluster_id : str
        The cluster to join.
    clock : Clock
        Time source.
    timing : Timing or None
        Retries and patience; None takes the cluster's.
    rank_request : RankRequest
        Rank to take, for a process that replaces another.

    Examples
    --------
    >>> client.setup([TableSpec("item", (PartSpec("v", 8),))])        # doctest: +SKIP
    >>> rows = client.pull({"item": keys}).wait().rows["item"]         # doctest: +SKIP
    >>> client.push({"item": (keys, gradients)}).wait()                # doctest: +SKIP
    """

    def __init__(
        self,
        transport: Transport,
        coordinator: str,
        cluster_id: str,
        clock: Clock,
        timing: Timing | None = None,
        rank_request: RankRequest = FREE_RANK,
    ) -> None:
        link, first_request_id = transport.connect(), secrets.randbits(63)
        self.cluster_id = cluster_id
        self.endpoint = Endpoint(link, Codec(cluster_id), timing or Timing(), clock, first_request_id)
        self.member = MemberHandle(self.endpoint, coordinator, "trainer", "", rank_request)
        self._specs: tuple[TableSpec, ...] = ()
        self._counted: set[str] = set()
        self._stream, self._next_number = 0, 0
        self._named_stream, self._names = 0, count()
        try:
            self.joined: Joined = join(self.member, self.endpoint.timing.start_s)
        except BaseException:
            self.endpoint.close()
            raise
        self._successors = Failover(self.endpoint, self.member, self.joined.config)
        self._map = self.joined.map
        self.endpoint.use_timing(timing or self.joined.config.asking)
        self.endpoint.requests.shares.share_bytes = self.joined.config.client_share_bytes
        self.member.on_map = self._set_map
        self.member.start_heartbeats(self.joined)

    @property
    def rank(self) -> int:
        """Rank of this trainer, from 0."""
        return self.joined.rank

    @property
    def servers(self) -> tuple[str, ...]:
        """Addresses of all servers, from the newest map."""
        return tuple(filter(None, self._map.addresses))

    # --- tables -------------------------------------------------------------------------------------------

    @checked()
    def setup(
        self,
        tables: Sequence[TableSpec],
        dense: DenseSpec | None = None,
        initial_dense: Rows | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        """Create tables and dense parameters on all servers; existing ones must be equal, and are shared.

        A later call adds tables; dense parameters stay when none are given. The server of the lowest rank
        decides for all: when two clients describe one table differently at once, one is refused.

        Parameters
        ----------
        tables : sequence of TableSpec
            All tables that this client will use.
        dense : DenseSpec or None
            Shape and optimizer of the dense parameters.
        initial_dense : (length,) float32
            Initial values; of several clients the first counts, so all must give the same.
        model : mapping or None
            Model that owns them (`pslib.table.descriptions.model_description`): another model is refused from
            now on. None: any model.

        Raises
        ------
        ConfigurationError
            When a server has a table of that name with another description or of another model, when two of
            ``tables`` have one name and differ, or when the new tables would cut off a call in flight.
        """
        check_tables(tables)
        message = setup_of(tables, dense, initial_dense, model)
        specs = {spec.name: spec for spec in (*self._specs, *tables)}
        self._set_up(message)
        self._successors.remember(message, specs.values())
        with self.endpoint.lock:
            self._begin_session(
                {name: spec.dim for name, spec in specs.items()}, dense.length if dense else None
            )
        self._specs = tuple(specs.values())
        self._counted = {spec.name for spec in self._specs if spec.takes_counts}

    def _set_up(self, message: Setup) -> None:
        set_up(self.endpoint, lambda: self.servers, message)

    def take_tables(self) -> tuple[TableSpec, ...]:
        """Take over all tables that the cluster has, as it has them; dense parameters stay the trainers'.

        For a process that joins a run to read its rows. A later call adds new tables.

        Raises
        ------
        UnknownTableError
            When the cluster has no table yet.
        """
        specs = tables_there(self.endpoint, self.servers[0])
        self.setup(specs)  # finishes a set-up that reached only some servers
        return specs

    def _begin_session(self, dims: dict[str, int], dense_length: int | None) -> None:
        """Begin a session for these tables; a fitting one continues, with its streams and counters."""
        old = self.endpoint.session
        length = dense_length if dense_length is not None else old.dense_length if old else 0
        if old and (old.dims, old.dense_length) == (dims, length):
            return
        if self.endpoint.calls_open:
            raise ConfigurationError("setup(...) with new tables: wait for pulls and pushes first")
        session = ClientSession(self.endpoint.requests, self._map, dims, length)
        if old:
            session.pushes_sent, session.updates_sent = old.pushes_sent, old.updates_sent
            session.between, session.acknowledged = old.between, old.acknowledged
        self._stream, self._next_number = CLIENT_STREAMS | secrets.randbits(62), 0
        self._named_stream, self._names = CLIENT_STREAMS | secrets.randbits(62), count()
        session.own_stream = self._stream
        self.endpoint.session = session

    @property
    def session(self) -> ClientSession:
        """Pure state machine of pull and push; ConfigurationError before `setup`."""
        if self.endpoint.session is None:
            raise ConfigurationError(
                "the client has no tables yet: call setup(...) first, or take_tables() for those there"
            )
        return self.endpoint.session

    def _set_map(self, new_map: PartitionMap) -> None:
        with self.endpoint.lock:
            before, self._map = self._map, new_map
            self._successors.meet(before, new_map)
            if self.endpoint.session:
                self.endpoint.session.set_map(self.endpoint.clock.now_s(), new_map)
            for gone in {*before.addresses}.difference(new_map.addresses):
                self.endpoint.forget(gone)

    def new_name(self) -> PushName:
        """Return a name for one push, so that it can be sent again when it was refused or not answered.

        Servers that have applied their part recognize the name, the others apply theirs: the push counts
        once. Push under each name until it succeeds: names of later pushes are kept in memory until then.

        Examples
        --------
        >>> name = client.new_name()                                        # doctest: +SKIP
        >>> client.push({"item": (keys, gradients)}, name=name).wait()      # doctest: +SKIP
        """
        _ = self.session
        return PushName(self._named_stream, next(self._names))

    def nothing_known(self) -> KnownDense:
        """Return empty known dense parameters, for the first of a series of pulls."""
        return KnownDense(np.empty(0, np.float32), np.zeros(self.joined.map.dense_blocks, np.uint64))

    # --- pull and push ------------------------------------------------------------------------------------

    def pull(
        self,
        keys: Mapping[str, Keys],
        dense: bool = False,
        *,
        step: int = 0,
        time_s: float = 0.0,
        rows_as: str = "float32",
        dense_as: str = "float32",
        known: KnownDense | None = None,
    ) -> PendingPull:
        """Read rows without creating any: an unseen key returns its initial value.

        The keys are sent, and sent again, without a copy: they must not change before the rows arrive.

        Parameters
        ----------
        keys : mapping of table name to (n,) uint64
            Keys may repeat.
        dense : bool
            True to read all dense parameters too.
        step, time_s
            The reader's time: the reply includes weight decay that a row has missed up to ``step``.
        rows_as, dense_as : str
            Wire types of rows and dense parameters (`pslib.table.wire_format`); they arrive as float32.
        known : KnownDense or None
            Dense parameters that this client has: unchanged blocks are not sent again.
            `nothing_known` at first, then `Pulled.known_dense` of an earlier pull.
        """
        moment = moment_of(step, time_s)
        used = self.session
        wanted = {table: checked_keys(table, array) for table, array in by_table(keys).items()}

        def begin(session: ClientSession, now_s: float) -> int:
            nonlocal used
            used = session
            return session.pull(now_s, wanted, dense, moment, rows_as, dense_as, known)

        number, pending = self.endpoint.call("a pull", begin)
        return PendingPull(lambda: used.pulled(number), pending, self.endpoint.lock)

    def push(
        self,
        gradients: Mapping[str, tuple[Keys, Rows]],
        dense: NDArray[Any] | None = None,
        name: PushName | None = None,
        *,
        step: int = 0,
        time_s: float = 0.0,
        shows: Mapping[str, Rows] | None = None,
        clicks: Mapping[str, Rows] | None = None,
        gradients_as: str = "float32",
        manner: Manner = PLAINLY,
        since: Seen = NOTHING_SEEN,
    ) -> PendingPush:
        """Send gradients; each server takes one optimizer step on each key.

        Arrays are sent, and sent again, without a copy: they must not change until the push is done.

        Parameters
        ----------
        gradients : mapping of table name to ((n,) uint64, (n, dim) float32)
            Repeated keys are summed first, in order. With a ``name`` keys must be distinct already.
        dense : (length,) float32, uint16 (bfloat16) or float16, or None
            Gradient of all dense parameters; it is sent in its own type, see
            `pslib.trainer.pipeline.dense.ErrorFeedback`.
        name : PushName or None
            Name from `new_name`, under which the push counts once; None: it cannot be sent again.
        step, time_s
            Time of the push, for tables whose rows age; a table uses one of them (`TableSpec.clock`).
        shows, clicks : mapping of table name to (n,) float32, or None
            Shows (above 0) and clicks of each key; default 1 and 0, so a repeated key has as many shows as
            occurrences. Not sent for tables whose policies do not count.
        gradients_as : str
            Wire type of gradients (`pslib.table.wire_format`); int8 rounds by the push's name and the key.
        manner : Manner
            Options: another learning rate, addition to weights, or a part of a sync step.
        since : Seen
            `Pulled.seen` of the pull that the gradients belong to: ``session.between`` measures how many
            pushes came between.

        Raises
        ------
        ConfigurationError
            When a table is unknown, an array has another shape or type, or a number is NaN or infinite (also
            after conversion to its wire type): then nothing is sent.
        MemoryLimitError
            From the pending, when a shard thread has no room for new rows: its rows are unchanged, others may
            have taken their step. When there is room, the same keys and gradients may be sent again under the
            same ``name``; a second push without one would step the others twice.
        """
        dims = self.session.dims
        check_type("gradients_as", gradients_as, ROW_TYPES)
        check_push(gradients, dense, name, manner, since, self.session.dense_length)
        checked, counts = prepared(gradients, dims, self._counted, shows, clicks, name is None, gradients_as)
        moment = moment_of(step, time_s)
        next_name = name or PushName(self._stream, self._next_number)
        salt = record_salt(next_name.stream, next_name.number)
        packed = {
            table: (keys, pack_gradients(keys, rows, gradients_as, salt) if table in dims else rows)
            for table, (keys, rows) in checked.items()
        }

        return self._named(
            "a push",
            name,
            lambda session, now_s, own: session.push(
                now_s, own, packed, dense, moment, counts, manner, since
            ),
        )

    def _named(
        self, what: str, name: PushName | None, begin: Callable[[ClientSession, float, PushName], int]
    ) -> PendingPush:
        """Start a call under ``name``, or under the next number of this client's own stream."""

        def numbered(session: ClientSession, now_s: float) -> int:
            call = begin(session, now_s, name or PushName(self._stream, self._next_number))
            self._next_number += name is None  # taken here: a number that is never sent would be waited for
            return call

        return self.endpoint.call(what, numbered)[1]

    def erase(self, keys: Mapping[str, Keys]) -> PendingPush:
        """Erase rows; absent keys are ignored."""
        _ = self.session
        gone = {table: checked_keys(table, array) for table, array in by_table(keys).items()}
        return self._named("an erase", None, lambda session, now_s, own: session.erase(now_s, own, gone))

    @checked("table", "decay", "name")
    def maintain(
        self,
        table: str,
        *,
        step: int = 0,
        time_s: float = 0.0,
        decay: bool = True,
        name: PushName | None = None,
    ) -> PendingPush:
        """Maintain a table on all servers: decay counts (with ``decay``), then evict rows by its rules.

        Parameters
        ----------
        table : str
        step, time_s
            Now, in the units of `push`: rows age up to it.
        decay : bool
            True to decay counts too: PaddlePaddle does it once a day.
        name : PushName or None
            As for `push`: it is applied once however often it is sent.
        """
        _ = self.session
        moment = moment_of(step, time_s)
        return self._named(
            "a maintenance",
            name,
            lambda session, now_s, own: session.maintain(now_s, own, table, decay, moment),
        )

    # --- control ------------------------------------------------------------------------------------------

    def ask_coordinator(self, message: Message) -> Message:
        """Send a request to the coordinator and wait for its reply."""
        return self.endpoint.ask(self.member.coordinator, message).wait()

    def stats(self) -> dict[str, Any]:
        """Return the summed counters of all servers: rows, parameters, memory_bytes, pushes_applied, others.

        ``tables`` has for each table the entries of `Store.stats`, and ``bytes_a_row``: its memory, with
        index, filters and free places, divided by its rows (0 without rows).
        """
        pending = [self.endpoint.ask(address, Stats()) for address in self.servers]
        return stats_of([one.wait() for one in pending])

    @checked()
    def save_files(self, path: str, stem: str) -> list[dict[str, Any]]:
        """Let every server write its files below ``path``; return the manifest entries, uncommitted."""
        pending = [
            self.endpoint.ask(address, Save(path, f"{stem}-{rank:03d}"), FILE_PATIENCE_S)
            for rank, address in enumerate(self.servers)
        ]
        # wait also after a failure: files written later would never be removed
        return files_of(all_of(pending, "{} of {} servers have written their files"))

    @checked()
    def load(
        self,
        path: str,
        *,
        state: bool = True,
        tables: Sequence[str] | None = None,
        step: int = 0,
        time_s: float = 0.0,
        ready: Callable[[], None] = lambda: None,
        lease: tuple[int, int] | None = None,
    ) -> int:
        """Let every server read what it owns from the checkpoint at ``path``; return the rows loaded.

        All servers are asked first whether they can load, and none begins where one cannot. Faults that show
        only later (damaged bytes, rows that take a little more memory than there is) may end a load half-way.
        Missing tables are set up as the checkpoint has them, as `setup` does it.

        Parameters
        ----------
        path : str
        state : bool
            True to load optimizer state too; without it rows and dense parameters begin with a fresh one.
        tables : sequence of str or None
            Rows of these tables only, and nothing else changes; None: all tables and dense parameters.
        step, time_s : int, float
            Last-seen time of rows, for a load without state or of some tables.
        ready : callable
            Called when all servers can load, and none has begun; an error of it ends the call.
        lease : (stream, epoch) or None
            Lease of this load: servers refuse it when they know of a later holder, or that it is over. None:
            no other process loads.

        Raises
        ------
        CheckpointError
            When the checkpoint is damaged or belongs to other tables.
        MemoryLimitError
            When a server has no room for its rows; the message says what became of the rows that were there,
            and how many servers have loaded.
        UnavailableError
            When another trainer holds the lease.
        ConfigurationError
            When another process sets up one of its tables differently meanwhile; nothing has changed then.
        """
        names = "" if tables is None else ",".join(tables)
        when = moment_of(step, time_s)
        named = (names, when.step, when.time_s, *(lease or (CLIENT_STREAMS, 0)))
        message = Load(path, secrets.token_hex(8), state, *named)
        return load_onto(self.endpoint, self.servers, message, ready, self._set_up)

    def close(self, well: bool = False) -> None:
        """Wait for all pushes, then leave the cluster; for ``well`` see `MemberHandle.leave`."""
        try:
            if self.endpoint.error is None:
                self.member.leave(well)
        finally:  # a Ctrl-C must not leave a running thread with a closed transport
            self.endpoint.close()
