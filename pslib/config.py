"""Settings of a cluster, and every limit with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, ClassVar

from pslib.errors import ConfigurationError
from pslib.settings import Setting, Settings

COORDINATOR_VARIABLE = "PSLIB_COORDINATOR"
"""The address of the cluster's coordinator."""
CLUSTER_ID_VARIABLE = "PSLIB_CLUSTER_ID"
"""The id that the cluster must have."""
KEYS_VARIABLE = "PSLIB_KEYS"
"""Names the file of a key, never a key: environments are inherited, listed and logged."""
CACHE_VARIABLE = "PSLIB_CACHE"
"""Names the folder of text that was converted to Parquet."""
LOG_FORMAT_VARIABLE = "PSLIB_LOG_FORMAT"
"""``text`` or ``json``: the format of lines of commands that have the option ``--log-format``."""
DEBUG_VARIABLE = "PSLIB_DEBUG"
"""With 1 every error is shown with its traceback."""


BYTES_MAX = 1 << 40
"""Far above any machine's memory, and far below an overflow of lengths in 64 bits."""


@dataclass(frozen=True, slots=True)
class Limits(Settings):
    """Limits of one message, checked before memory is allocated for it."""

    AT = ""

    header_bytes_max: Annotated[
        int,
        Setting(
            "Of the header, which names tables and arrays; 64 tables with 8 arrays each stay below 64 KiB. "
            "A map of 2^20 owners travels as an array, not in the header.",
            ge=1,
            le=BYTES_MAX,
            unit="bytes",
        ),
    ] = 1 << 20
    frames_max: Annotated[
        int,
        Setting(
            "One for the header and one an array (a small one counts too, though it travels in the header): "
            "two arrays a table, 64 tables, and a few of our own.",
            ge=1,
            le=BYTES_MAX,
            unit="frames",
        ),
    ] = 1024
    frame_bytes_max: Annotated[
        int,
        Setting(
            "Of one frame: 1 GiB is a request of 4 million rows of 64 floats. Larger ones must be cut by "
            "the caller.",
            ge=1,
            le=BYTES_MAX,
            unit="bytes",
        ),
    ] = 1 << 30
    message_bytes_max: Annotated[
        int,
        Setting(
            "2 GiB, so that a server with 24 GiB survives several of the largest messages at once.",
            ge=1,
            le=BYTES_MAX,
            unit="bytes",
        ),
    ] = 1 << 31


SECONDS_MAX = 1e6
"""Eleven days: in milliseconds, as ZeroMQ and poll count them, they fit into 31 bits."""


def _seconds(help: str) -> Setting:
    return Setting(help, gt=0, le=SECONDS_MAX, unit="seconds")


DrainSeconds = Annotated[
    float,
    _seconds(
        "A process that is asked to leave (SIGTERM) finishes its work for so long. Machines that are taken "
        "away give 30 seconds and more."
    ),
]


@dataclass(frozen=True, slots=True)
class Timing(Settings):
    """Waits and intervals in seconds; `silence_s` is longer than `heartbeat_s`."""

    AT = ""

    heartbeat_s: Annotated[float, _seconds("One a second is 100 small messages a second at 100 peers.")] = 1.0
    silence_s: Annotated[
        float,
        _seconds(
            "A peer that has sent nothing for so long counts as dead: five lost heartbeats, below the 15 "
            "seconds in which a user must hear of a lost server."
        ),
    ] = 6.0
    retry_s: Annotated[
        float,
        _seconds(
            "First pause before an unanswered request is sent again; it doubles up to retry_max_s. A slice "
            "of 100,000 rows takes a server about 10 ms."
        ),
    ] = 1.0
    retry_max_s: Annotated[float, _seconds("Longest pause before an unanswered request is sent again.")] = 4.0
    request_s: Annotated[float, _seconds("A request fails for good after so long.")] = 60.0
    start_s: Annotated[float, _seconds("How long processes wait for each other when a cluster starts.")] = (
        60.0
    )
    report_s: Annotated[float, _seconds("A waiting process says for whom it waits this often.")] = 5.0
    cut_s: Annotated[
        float,
        _seconds(
            "A checkpoint of a training that goes on is given up when trainers have paused for so long."
        ),
    ] = 10.0
    restart_s: Annotated[
        float,
        _seconds("A lost server whose state is in its log has so long to come back before the run ends."),
    ] = 60.0
    drain_s: DrainSeconds = 20.0

    def _problems(self) -> Iterator[str]:
        if self.silence_s <= self.heartbeat_s:
            yield f"silence_s: expected more than heartbeat_s, {self.heartbeat_s:g}, got {self.silence_s:g}"


SERVERS_MAX = 4096
TRAINERS_MAX = 65536
CREDIT_BYTES_MIN = 1 << 20
"""Room for the messages of a few hundred small requests."""
LOG_BYTES_MIN = 16 << 20
"""A few segments; a smaller log would be trimmed after every push."""
SHARD_MEMORY_BYTES_MIN = 4 << 20
"""Least memory of a shard thread: a table allocates pieces of up to 2 MiB, and fewer than two of them would
leave no room for rows."""
DURABILITIES = ("memory", "log", "disk")
RECOVERIES = ("log", "rollback", "partial")
ROW_TYPE_NAMES = ("float32", "bfloat16", "float16", "int8")
"""Types of rows on the wire; their NumPy dtypes: `pslib.table.wire_format`."""

ANY_RANK = 0xFFFFFFFF
"""Rank that a process requests when it takes any free one."""

NEXT_GENERATION = 0xFFFFFFFF
"""Generation that a process requests without a launcher that counts its starts: one more than the holder's,
once that counts as lost."""

Restarts = Annotated[
    int,
    Setting(
        "How often a launcher starts one process again; 0 is never.",
        ge=0,
        le=1 << 20,
        unit="restarts",
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterSettings(Settings):
    """Number of processes of each kind, and recovery when one is lost: the section ``cluster``."""

    AT = ""
    SERVERS_MAX: ClassVar[int] = SERVERS_MAX
    TRAINERS_MAX: ClassVar[int] = TRAINERS_MAX
    LOG_BYTES_MIN: ClassVar[int] = LOG_BYTES_MIN

    servers: Annotated[
        int,
        Setting(
            "Servers that hold the rows; all are waited for at the start.",
            ge=1,
            le=SERVERS_MAX,
            unit="processes",
        ),
    ] = 1
    trainers: Annotated[
        int,
        Setting(
            "Trainers that compute; all are waited for at the start.",
            ge=1,
            le=TRAINERS_MAX,
            unit="processes",
        ),
    ] = 1
    servers_max: Annotated[
        int,
        Setting(
            "Servers that join and stay for half a minute get rows by themselves until so many have some; 0: "
            "only `pslib scale` gives rows. In a job file servers: {min: 2, max: 8} is servers and this.",
            ge=0,
            le=SERVERS_MAX,
            unit="processes",
        ),
    ] = 0
    trainers_max: Annotated[
        int,
        Setting(
            "Trainers that may train at once, those that join later included; 0 is no limit. In a job file "
            "trainers: {min: 2, max: 16} is trainers and this.",
            ge=0,
            le=TRAINERS_MAX,
            unit="processes",
        ),
    ] = 0
    shard_threads: Annotated[
        int, Setting("Threads of one server that own partitions.", ge=1, le=64, unit="threads")
    ] = 1
    partition_bits: Annotated[
        int, Setting("2^bits partitions; at least 16 a server.", ge=4, le=20, unit="bits")
    ] = 12
    dense_blocks: Annotated[
        int,
        Setting("Pieces in which dense parameters are spread over servers.", ge=1, le=4096, unit="pieces"),
    ] = 64
    server_memory_bytes: Annotated[
        int,
        Setting(
            "Limit of the tables of one server, an even share for each of its shard threads; 0 is no limit. "
            "The process itself (Python, pyarrow, messages on their way) takes some 150 MiB beside it.",
            ge=0,
            unit="bytes",
        ),
    ] = 0
    credit_bytes: Annotated[
        int,
        Setting(
            "Of requests and their answers on their way to and from one server, whatever the number of "
            "clients: half in even shares of the trainers, half granted on demand. The default, 1 GiB, "
            "leaves each of 64 trainers 7 MiB, twice the messages of a step of 4,096 examples of 26 fields "
            "at dim 16.",
            ge=CREDIT_BYTES_MIN,
            le=1 << 40,
            unit="bytes",
        ),
    ] = 1 << 30
    durability: Annotated[
        str,
        Setting(
            "Failure that an acknowledged push survives: none; the end of the server's process, "
            "because it is in the update log; or also a loss of power, because the log is synced.",
            choices=DURABILITIES,
        ),
    ] = "memory"
    recovery: Annotated[
        str,
        Setting(
            "Recovery of a lost server: it comes back from its log, and where that has lost its "
            "end the run stops; everybody goes back to the last checkpoint; or it alone comes back, from "
            "its log or, where there is none, at the last checkpoint, and the run goes on without what is "
            "lost, which is counted.",
            choices=RECOVERIES,
        ),
    ] = "log"
    log_bytes: Annotated[
        int,
        Setting(
            "A server's update log stays below this or three times what its tables take, whichever is more.",
            ge=LOG_BYTES_MIN,
            le=1 << 50,
            unit="bytes",
        ),
    ] = 8 << 30
    restarts: Restarts = 0  # no launcher, no restarts; a job file and `pslib launch` have one: RESTARTS

    def _problems(self) -> Iterator[str]:
        for name in ("servers", "trainers"):
            least, most = getattr(self, name), getattr(self, f"{name}_max")
            if 0 < most < least:
                yield f"{name}_max: expected 0 or at least {name}, {least}, got {most}"
        if self.servers * 16 > 1 << self.partition_bits:
            yield (
                f"partition_bits: {self.servers} servers need at least {self.servers * 16} partitions, "
                f"2^{self.partition_bits} = {1 << self.partition_bits} are too few"
            )
        least = SHARD_MEMORY_BYTES_MIN * self.shard_threads
        if 0 < self.server_memory_bytes < least:
            yield (
                f"server_memory_bytes: expected 0 (no limit) or at least {least} for {self.shard_threads} "
                f"shard threads, got {self.server_memory_bytes}"
            )


@dataclass(frozen=True, slots=True)
class ClusterConfig(ClusterSettings):
    """Settings that the coordinator sends to every process that joins.

    Attributes
    ----------
    timing : Timing
        Waits; the other fields are those of `ClusterSettings`.
    """

    timing: Timing = Timing()

    @property
    def shard_memory_bytes(self) -> int:
        """Memory limit of the tables of one shard thread; 0 is no limit."""
        return self.server_memory_bytes // self.shard_threads

    @property
    def servers_come_back(self) -> bool:
        """True if a lost server may come back: with its log, or at the last checkpoint."""
        return self.coordinator_comes_back or self.recovery == "partial"

    @property
    def coordinator_comes_back(self) -> bool:
        """True if a lost coordinator may come back with its journal."""
        return self.durability != "memory" and self.recovery != "rollback"

    @property
    def asking(self) -> Timing:
        """Timing of clients: requests last longer where servers may come back."""
        if not self.servers_come_back:
            return self.timing
        return replace(self.timing, request_s=self.timing.request_s + self.timing.restart_s)

    @property
    def client_share_bytes(self) -> int:
        """Bytes that one trainer may have in flight to one server without a grant."""
        return max(1, self.credit_bytes // 2 // self.trainers)

    @property
    def grant_bytes(self) -> int:
        """Bytes that one server may grant to requests that do not fit a share."""
        return self.credit_bytes // 2

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return 1 << self.partition_bits

    @property
    def units(self) -> int:
        """Number of units, which have an owner each: partitions, then dense blocks."""
        return self.partitions + self.dense_blocks

    def to_dict(self) -> dict[str, object]:
        """Plain form for the wire."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, object]) -> ClusterConfig:
        """Read back what `to_dict` wrote.

        Raises
        ------
        ConfigurationError
            If there is an unknown setting, or one is out of range.
        """
        values = dict(plain)
        timing = values.pop("timing", {})
        known = {field.name for field in fields(ClusterConfig)}
        if unknown := sorted(set(values) - known):
            raise ConfigurationError(f"cluster: unknown {unknown[0]!r}; it takes {', '.join(sorted(known))}")
        return ClusterConfig(timing=Timing(**timing), **values)  # type: ignore[arg-type]
