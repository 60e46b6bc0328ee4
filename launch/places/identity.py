"""Contract of a process without a launcher: who it is and where its cluster is, from options or environment.

Every value has the same order of sources: the option, the ``PSLIB_`` variable, what schedulers set
(torchrun, Slurm, an Indexed Job of Kubernetes), the host name of a pod of a StatefulSet.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pslib.config import CLUSTER_ID_VARIABLE, COORDINATOR_VARIABLE
from pslib.errors import ConfigurationError
from pslib.process.listening import url_host

RANK_VARIABLE = "PSLIB_RANK"
ADDRESS_VARIABLE = "PSLIB_ADDRESS"
"""Address of this process for the others: in a pod its ``status.podIP``."""

PORTS = {"coordinator": 7077, "server": 7078}
"""Ports on which a process listens that has an address of its own, as a pod has."""

RANK_MAX = 65535


@dataclass(frozen=True, slots=True)
class GivenIdentity:
    """Options of a command line that say who a process is; None: not given."""

    rank: int | None = None
    coordinator: str | None = None
    cluster_id: str | None = None
    listen: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of one process of a cluster.

    Attributes
    ----------
    role : str
        "coordinator", "server" or "trainer".
    rank : int
        0-based number within its role; 0 for a coordinator.
    coordinator : str
        ``tcp://host:port`` of the coordinator; its own listening address for a coordinator.
    cluster_id : str
    listen : str
        Address to listen at; empty for a trainer.
    sources : mapping of str to str
        Name of the option or variable that gave each value.
    """

    role: str
    rank: int
    coordinator: str
    cluster_id: str
    listen: str
    sources: Mapping[str, str]

    def line(self) -> str:
        """Describe it in a line, with the source of each value."""
        name = self.role if self.role == "coordinator" else f"{self.role} {self.rank}"
        sources = ", ".join(f"{what} by {source}" for what, source in self.sources.items())
        return f"{name} of cluster {self.cluster_id}, coordinator {self.coordinator} ({sources})"


def identity_of_process(
    role: str,
    given: GivenIdentity,
    environment: Mapping[str, str],
    host_name: str,
    own_address: Callable[[str], str] | None = None,
) -> ProcessIdentity:
    """Return who a process is.

    Parameters
    ----------
    role : str
    given : GivenIdentity
    environment : mapping
    host_name : str
    own_address : callable, optional
        Returns this machine's address as a host sees it; default: `address_toward`.

    Raises
    ------
    ConfigurationError
        When a value has no source, or a wrong value; one line each.
    """
    found: dict[str, tuple[str, str]] = {}
    problems = []
    wanted = {"cluster id": _cluster_ids(given, environment)}
    if role != "coordinator":
        wanted["coordinator"] = _coordinators(given, environment)
        wanted["rank"] = _ranks(given, environment, host_name)
    for what, sources in wanted.items():
        first = next(sources, None)
        if first is None:
            problems.append(f"{what}: {_NO_SOURCE[what]}")
        else:
            found[what] = first
    if problems:
        raise ConfigurationError(*problems)
    rank = _rank(*found["rank"]) if "rank" in found else 0
    coordinator = _tcp(*found["coordinator"]) if "coordinator" in found else ""
    listen, source = _listen(role, given, environment, coordinator, own_address or address_toward)
    if source:
        found["address"] = listen, source
    told = {what: source for what, (_, source) in found.items()}
    cluster_id = _cluster_id(*found["cluster id"])
    return ProcessIdentity(role, rank, coordinator or listen, cluster_id, listen, told)


_NO_SOURCE = {
    "rank": f"which one is this? Expected --rank or {RANK_VARIABLE}; else RANK (torchrun), SLURM_PROCID, "
    "JOB_COMPLETION_INDEX or a host name that ends with a number (Kubernetes)",
    "coordinator": f"where is it? Expected --coordinator or {COORDINATOR_VARIABLE}, tcp://host:port; else "
    "MASTER_ADDR (torchrun) or SLURM_LAUNCH_NODE_IPADDR",
    "cluster id": f"which cluster is it? Expected --cluster-id or {CLUSTER_ID_VARIABLE}; else "
    "TORCHELASTIC_RUN_ID or SLURM_JOB_ID",
}


def _cluster_ids(given: GivenIdentity, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the ids of the cluster that are named, with their sources, the first one counts."""
    if given.cluster_id:
        yield given.cluster_id, "--cluster-id"
    yield from _variables(environment, CLUSTER_ID_VARIABLE, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


def _coordinators(given: GivenIdentity, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if given.coordinator:
        yield given.coordinator, "--coordinator"
    yield from _variables(environment, COORDINATOR_VARIABLE)
    if host := environment.get("MASTER_ADDR"):
        yield (
            f"tcp://{url_host(host)}:{environment.get('MASTER_PORT') or PORTS['coordinator']}",
            "MASTER_ADDR",
        )
    if host := environment.get("SLURM_LAUNCH_NODE_IPADDR"):
        yield f"tcp://{url_host(host)}:{PORTS['coordinator']}", "SLURM_LAUNCH_NODE_IPADDR"


def _ranks(given: GivenIdentity, environment: Mapping[str, str], host_name: str) -> Iterator[tuple[str, str]]:
    if given.rank is not None:
        yield str(given.rank), "--rank"
    yield from _variables(environment, RANK_VARIABLE, "RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
    if ordinal := re.fullmatch(r"[a-z0-9.-]*-(\d+)", host_name):
        yield ordinal[1], f"host name {host_name}"


def _variables(environment: Mapping[str, str], *names: str) -> Iterator[tuple[str, str]]:
    return ((environment[name], name) for name in names if environment.get(name))


def _rank(text: str, source: str) -> int:
    if not (re.fullmatch("[0-9]{1,9}", text) and int(text) <= RANK_MAX):
        raise ConfigurationError(f"{source}: expected a rank from 0 to {RANK_MAX}, got {text!r}")
    return int(text)


_TCP = re.compile(r"tcp://(\[(?:[0-9A-Fa-f]*:){2,}[0-9A-Fa-f.]*(?:%\w+)?\]|[^\s/@:\[\]]+):([0-9]{1,5})")


def _tcp(text: str, source: str, least_port: int = 1) -> str:
    """Return an address; ``host:port`` without a scheme is accepted."""
    address = text if "://" in text else f"tcp://{text}"
    found = _TCP.fullmatch(address)
    if found is None or not least_port <= int(found[2]) < 1 << 16:
        raise ConfigurationError(f"{source}: expected tcp://host:port, got {text!r}")
    return address


def _cluster_id(text: str, source: str) -> str:
    if not re.fullmatch(r"[\w.:/-]{1,200}", text):
        raise ConfigurationError(f"{source}: expected up to 200 letters, digits and _ . : / -, got {text!r}")
    return text


def _listen(
    role: str,
    given: GivenIdentity,
    environment: Mapping[str, str],
    coordinator: str,
    own_address: Callable[[str], str],
) -> tuple[str, str]:
    """Return the listening address and its source; none for a trainer."""
    if role == "trainer":
        return "", ""
    if given.listen:
        return _known(role, _tcp(given.listen, "--listen", 0), "--listen"), "--listen"
    if address := environment.get(ADDRESS_VARIABLE):
        listen = _tcp(f"{url_host(address)}:{PORTS[role]}", ADDRESS_VARIABLE)
        return _known(role, listen, ADDRESS_VARIABLE), ADDRESS_VARIABLE
    if role == "coordinator":
        raise ConfigurationError(
            f"address: where shall the coordinator listen? Expected --listen or {ADDRESS_VARIABLE}"
        )
    host = coordinator.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return f"tcp://{url_host(own_address(host))}:0", f"the route to {host}"


def _known(role: str, address: str, source: str) -> str:
    """Return the listening address; a server's is also the one that others are told."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    if role == "server" and host in ("*", "0.0.0.0", "[::]"):
        raise ConfigurationError(
            f"{source}: expected the address at which others reach the server, got {host}"
        )
    return address


def address_toward(host: str) -> str:
    """Return this machine's address on the route to a host; nothing is sent.

    Raises
    ------
    ConfigurationError
        When there is no such host, or no route to it.
    """
    why = "no address"
    try:
        for family, *_, place in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trial:
                trial.connect(place)
                return str(trial.getsockname()[0])
    except (OSError, UnicodeError) as error:  # a label of a name that is empty or too long
        why = getattr(error, "strerror", None) or str(error)
    raise ConfigurationError(f"coordinator: {host} can't be reached ({why}); give --listen tcp://ADDRESS:0")
