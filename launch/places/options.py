"""Options of a run: machines, folder and records; and the launcher of the machines."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launch.supervisor.run_spec import Launcher
from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from launch.places.hosts import Host


class RemoteLauncher(Launcher, Protocol):
    """Launcher that runs processes on other machines; it can say what they see before a run begins."""

    @property
    def insecure_network(self) -> bool:
        """True if processes without keys may listen on addresses that other machines reach."""
        ...

    @property
    def options(self) -> str:
        """Options of the command line that select this launcher."""
        ...

    @property
    def open_addresses(self) -> list[str]:
        """Addresses of the machines that other machines reach."""
        ...

    def count(self, role: str) -> int | None:
        """Return the number of servers or trainers; None if the place does not say it."""
        ...

    def not_seeing(self, path: str) -> list[str]:
        """Return names of the machines on which a path does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of ``pslib train`` and ``pslib launch`` that select machines and numbers of processes.

    Attributes
    ----------
    on : str
        local, or one of `place_names`.
    hosts, ssh_config : str or None
        With ssh: the hosts file, and the file for ssh's option ``-F``.
    per_node : str or None
        With slurm: the processes of each node, as in a hosts file.
    address : str or None
        With ray: the address of the cluster, or auto.
    cpus : int or None
        With ray: CPUs of each server and trainer.
    insecure_network : bool
        True to run without encryption on addresses that other machines reach.
    port : int
        Port of the coordinator; 0 is any free one.
    servers, trainers : int or None
        Numbers of processes, on this machine and with ray; None: the default.
    """

    on: str = "local"
    hosts: str | None = None
    ssh_config: str | None = None
    per_node: str | None = None
    address: str | None = None
    cpus: int | None = None
    insecure_network: bool = False
    port: int = 0
    servers: int | None = None
    trainers: int | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``pslib train`` and ``pslib launch`` about the run's folder and records.

    Attributes
    ----------
    out : str or None
        Folder of the run; None: that of the job file, or for a script none.
    keys : str or None
        Folder of keys to encrypt with; None does not.
    overwrite, resume : bool
        True to replace an earlier run in the folder, or to continue it, from its logs or its checkpoint.
    tensorboard : bool
        True to write event files for TensorBoard into the folder.
    quiet : bool
        True to show no progress.
    log_format : str or None
        "text" or "json"; None: that of the job file, or for a script text.
    ui : int or None
        Port of the run's page on this machine, 0 for any; None: that of the job file, or no page.
    """

    out: str | None = None
    keys: str | None = None
    overwrite: bool = False
    resume: bool = False
    tensorboard: bool = False
    quiet: bool = False
    log_format: str | None = None
    ui: int | None = None

    @property
    def json_logs(self) -> bool:
        """True for lines of JSON without a job file."""
        return self.log_format == "json"

    def __post_init__(self) -> None:
        """Refuse to replace the run that is to be continued."""
        if self.overwrite and self.resume:
            raise ConfigurationError("--overwrite is not allowed with --resume: leave one of them out")


def place_names() -> tuple[str, ...]:
    """Return the names of the places beside this machine: the modules here that define ``launcher_of``."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(file.stem for file in files if "\ndef launcher_of(" in file.read_text(encoding="utf-8"))


def selected_launcher(options: HostOptions) -> RemoteLauncher | None:
    """Return the launcher that the options select; None: this machine.

    Raises
    ------
    ConfigurationError
        When an option belongs to another place, or its value is wrong.
    UnavailableError
        When Slurm does not report the addresses of its nodes, or no cluster of Ray answers.
    """
    places = {name: import_module(f"launch.places.{name}") for name in place_names()}
    taken = places[options.on].OPTIONS if options.on in places else ()
    for name in dict.fromkeys(name for place in places.values() for name in place.OPTIONS):
        if getattr(options, name) is not None and name not in taken:
            of = " or ".join(on for on, place in places.items() if name in place.OPTIONS)
            raise ConfigurationError(f"{option_text(name)} is for --on {of}; leave one of them out")
    if options.on not in places:
        return None
    launcher: Any = places[options.on].launcher_of(options)
    given = {name: getattr(options, name) for name in taken}
    again = [word for name, one in given.items() if one for word in (option_text(name), str(one))]
    again += ["--insecure-network"] if options.insecure_network else []
    selected: RemoteLauncher = replace(launcher, options=shlex.join(["--on", options.on, *again]))
    return selected


def hosts_in_file(options: HostOptions) -> list[Host]:
    """Read the file of ``--hosts``, for a place whose hosts stand in one.

    Raises
    ------
    ConfigurationError
        When the file is wrong or missing, or numbers of processes are given beside it.
    """
    from launch.places.hosts import read_hosts

    file, on = options.hosts, f"--on {options.on}"
    if file is None:
        raise ConfigurationError(f"{on} needs --hosts FILE: a line a host, HOST [servers=N] [trainers=N]")
    if options.servers is not None or options.trainers is not None:
        raise ConfigurationError(
            f"--servers and --trainers stand in the hosts file with {on}: servers=N trainers=N"
        )
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{file}: the hosts file can't be read: {reason}") from error
    return read_hosts(text, file, str(Path.cwd()))


def option_text(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
