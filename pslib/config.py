"""Settings of a cluster, and every limit with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

from pslib.arguments import check_fields
from pslib.errors import ConfigurationError

__all__ = ["ANY_RANK", "DURABILITIES", "RECOVERIES", "ClusterConfig", "Limits", "Timing"]


def _values(holder: Limits | Timing) -> Iterator[tuple[str, Any]]:
    return ((one.name, getattr(holder, one.name)) for one in fields(holder))


def _refuse(problems: Iterable[str]) -> None:
    if lines := list(problems):
        raise ConfigurationError(*lines)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may hold: checked before memory is taken for it.

    Attributes
    ----------
    header_bytes_max : int
        A header names tables and arrays; 64 tables with 8 arrays each stay below 64 KiB. A map of 2^20 owners
        travels as an array, not in the header.
    frames_max : int
        One for the header and one an array (a small one counts too, though it travels in the header): two
        arrays a table, 64 tables, and a few of our own.
    frame_bytes_max : int
        1 GiB: a request of 4 million rows of 64 floats. Larger ones must be cut by the caller.
    message_bytes_max : int
        2 GiB, so that a server with 24 GiB survives several of the largest messages at once.

    Raises
    ------
    ConfigurationError
        When one is no whole number or out of range; all problems at once.
    """

    header_bytes_max: int = 1 << 20
    frames_max: int = 1024
    frame_bytes_max: int = 1 << 30
    message_bytes_max: int = 1 << 31

    BYTES_MAX: ClassVar[int] = 1 << 40
    """Far above any machine's memory, and far below where lengths in 64 bits could wrap."""

    def __post_init__(self) -> None:
        check_fields(self)
        _refuse(
            f"{name}: expected 1..{self.BYTES_MAX}, got {value}"
            for name, value in _values(self)
            if not 1 <= value <= self.BYTES_MAX
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for what, in seconds.

    Attributes
    ----------
    heartbeat_s : float
        One a second is 100 small messages a second at 100 peers.
    silence_s : float
        A peer that has sent nothing for so long counts as dead: five lost heartbeats, below the 15 seconds in
        which a user must hear of a lost server.
    retry_s : float
        An unanswered request is sent again; a slice of 100,000 rows takes a server about 10 ms.
    retry_max_s : float
        Retries back off to this.
    request_s : float
        A request fails for good after so long.
    start_s : float
        How long processes wait for each other when a cluster starts.
    report_s : float
        A waiting process says for whom it waits this often.
    cut_s : float
        A checkpoint of a training that goes on is given up when trainers have paused for so long.
    restart_s : float
        A lost server whose state is in its log has so long to come back before the run ends.
    drain_s : float
        A process that is asked to leave (SIGTERM) finishes its work for so long. Machines that are taken away
        give 30 seconds and more.

    Raises
    ------
    ConfigurationError
        When one is no number or out of range, or peers would be dead between two heartbeats; all problems at
        once.
    """

    heartbeat_s: float = 1.0
    silence_s: float = 6.0
    retry_s: float = 1.0
    retry_max_s: float = 4.0
    request_s: float = 60.0
    start_s: float = 60.0
    report_s: float = 5.0
    cut_s: float = 10.0
    restart_s: float = 60.0
    drain_s: float = 20.0

    SECONDS_MAX: ClassVar[float] = 1e6
    """Eleven days: in milliseconds, as ZeroMQ and poll count them, they fit into 31 bits."""

    def __post_init__(self) -> None:
        check_fields(self)
        problems = [
            f"{name}: expected seconds, above 0 and at most {self.SECONDS_MAX:g}, got {value}"
            for name, value in _values(self)
            if not 0 < value <= self.SECONDS_MAX
        ]
        if not problems and self.silence_s <= self.heartbeat_s:
            problems.append(
                f"silence_s: expected more than heartbeat_s, {self.heartbeat_s:g}, got {self.silence_s:g}"
            )
        _refuse(problems)


DURABILITIES = ("memory", "log", "disk")
RECOVERIES = ("log", "rollback", "partial")

ANY_RANK = 0xFFFFFFFF
"""What a process asks for that takes any free place."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What the coordinator tells every process that joins; one line a problem when it is built wrongly.

    Attributes
    ----------
    servers, trainers : int
        How many of each the cluster waits for before it starts; 1..SERVERS_MAX and 1..TRAINERS_MAX.
    shard_threads : int
        Threads of one server that own partitions, 1..64.
    partition_bits : int
        2^bits partitions; at least 16 a server.
    dense_blocks : int
        Pieces in which dense parameters are spread over servers.
    server_memory_bytes : int
        What the tables of one server may take, its shard threads an even share each; 0 is no limit. The
        process itself (Python, pyarrow, messages on their way) takes some 150 MiB beside it.
    credit_bytes : int
        Of requests and their answers on their way to and from one server, whatever the number of clients
        (`pslib.protocol.credit`): half in even shares of the trainers, half granted on demand. The default,
        1 GiB, leaves each of 64 trainers 7 MiB, twice the messages of a step of 4,096 examples of 26 fields
        at dim 16.
    durability : {"memory", "log", "disk"}
        What a push has survived when it is acknowledged: nothing; the end of the server's process, because it
        is in the update log; or also a loss of power, because the log is synced.
    recovery : {"log", "rollback", "partial"}
        What happens when a server is lost: it comes back from its log, and where that has lost its end the
        run stops; everybody goes back to the last checkpoint; or it alone comes back, from its log or, where
        there is none, at the last checkpoint, and the run goes on without what is lost, which is counted.
    log_bytes : int
        A server's update log stays below this or three times what its tables take, whichever is more.
    restarts : int
        How often a launcher starts one process again; 0 is never.
    timing : Timing
        Waits.
    """

    servers: int = 1
    trainers: int = 1
    shard_threads: int = 1
    partition_bits: int = 12
    dense_blocks: int = 64
    server_memory_bytes: int = 0
    credit_bytes: int = 1 << 30
    durability: str = "memory"
    recovery: str = "log"
    log_bytes: int = 8 << 30
    restarts: int = 0
    timing: Timing = Timing()

    SERVERS_MAX: ClassVar[int] = 4096
    TRAINERS_MAX: ClassVar[int] = 65536
    CREDIT_BYTES_MIN: ClassVar[int] = 1 << 20
    """Room for the messages of a few hundred small requests."""
    LOG_BYTES_MIN: ClassVar[int] = 16 << 20
    """Of a few segments; less would be trimmed after every push."""
    SHARD_MEMORY_BYTES_MIN: ClassVar[int] = 4 << 20
    """Of one shard thread: a table takes memory from the system in pieces of up to 2 MiB, and fewer than two
    of them would leave no room for rows."""

    def __post_init__(self) -> None:
        check_fields(self)
        problems = [
            f"{name}: expected {low}..{high}, got {value}"
            for name, value, low, high in (
                ("servers", self.servers, 1, self.SERVERS_MAX),
                ("trainers", self.trainers, 1, self.TRAINERS_MAX),
                ("shard_threads", self.shard_threads, 1, 64),
                ("partition_bits", self.partition_bits, 4, 20),
                ("dense_blocks", self.dense_blocks, 1, 4096),
                ("credit_bytes", self.credit_bytes, self.CREDIT_BYTES_MIN, 1 << 40),
                ("log_bytes", self.log_bytes, self.LOG_BYTES_MIN, 1 << 50),
                ("restarts", self.restarts, 0, 1 << 20),
            )
            if not low <= value <= high
        ]
        problems += [
            f"{name}: expected {', '.join(known)}, got {value!r}"
            for name, value, known in (
                ("durability", self.durability, DURABILITIES),
                ("recovery", self.recovery, RECOVERIES),
            )
            if value not in known
        ]
        if not problems and self.servers * 16 > 1 << self.partition_bits:
            problems.append(
                f"partition_bits: {self.servers} servers need at least {self.servers * 16} partitions, "
                f"2^{self.partition_bits} = {1 << self.partition_bits} are too few"
            )
        problems += self._memory_problems()
        if problems:
            raise ConfigurationError(*problems)

    def _memory_problems(self) -> list[str]:
        least = self.SHARD_MEMORY_BYTES_MIN * self.shard_threads
        if self.server_memory_bytes == 0 or self.server_memory_bytes >= least:
            return []
        return [
            f"server_memory_bytes: expected 0 (no limit) or at least {least} for {self.shard_threads} shard "
            f"threads, got {self.server_memory_bytes}"
        ]

    @property
    def shard_memory_bytes(self) -> int:
        """What the tables of one shard thread may take; 0 is no limit."""
        return self.server_memory_bytes // self.shard_threads

    @property
    def servers_come_back(self) -> bool:
        """Whether a server that is lost may come back: with its log, or at the last checkpoint."""
        return self.coordinator_comes_back or self.recovery == "partial"

    @property
    def coordinator_comes_back(self) -> bool:
        """Whether a coordinator that is lost may come back with its journal."""
        return self.durability != "memory" and self.recovery != "rollback"

    @property
    def asking(self) -> Timing:
        """How long clients are patient: where servers may come back, as long again as they may take."""
        if not self.servers_come_back:
            return self.timing
        return replace(self.timing, request_s=self.timing.request_s + self.timing.restart_s)

    @property
    def client_share_bytes(self) -> int:
        """What one trainer may have in flight to one server without asking."""
        return max(1, self.credit_bytes // 2 // self.trainers)

    @property
    def grant_bytes(self) -> int:
        """What one server may grant to requests that do not fit a share."""
        return self.credit_bytes // 2

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return 1 << self.partition_bits

    @property
    def units(self) -> int:
        """Number of things that have an owner: partitions, then dense blocks."""
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
            When there is an unknown setting, or one is out of range.
        """
        values = dict(plain)
        timing = values.pop("timing", {})
        known = {field.name for field in fields(ClusterConfig)}
        if unknown := sorted(set(values) - known):
            raise ConfigurationError(f"cluster: unknown {unknown[0]!r}; it takes {', '.join(sorted(known))}")
        return ClusterConfig(timing=Timing(**timing), **values)  # type: ignore[arg-type]
