"""Keys of a cluster: the credentials of one process, and the folder of key files.

::

    keys/               0700
      server.keys       0600   for coordinator and servers; holds the list of all keys that may connect
      trainer.keys      0600
      reader.keys       0600   read-only: pull, stats, status
      admin.keys        0600   may also stop the cluster and move partitions

A file is a JSON object; a secret in it never leaves the process that has read it. Nothing here prints one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import zmq

from pslib.errors import ConfigurationError
from pslib.wire.fields import ROLES

SUFFIX = ".keys"
ALLOWED_MAX = 10_000
"""Maximum allowed keys: one a person and one a job; more is a mistake."""
FILE_BYTES_MAX = 1 << 20
"""Maximum size of a key file: `ALLOWED_MAX` entries of some 60 bytes fit."""

_KEY_CHARS = 40  # Z85 of 32 bytes
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one process, each 40 characters of Z85, as ZeroMQ writes them.

    Attributes
    ----------
    role : str
        Role of the own key: one of `pslib.wire.permissions.ROLES`.
    server_public : str
        Key of coordinator and servers, so that no other process can impersonate one.
    public, secret : str
        The own pair.
    server_secret : str
        Secret of listening processes; empty for all others.
    allowed : mapping of str to str
        Public keys that may connect to a listening process, and their roles.

    Raises
    ------
    ConfigurationError
        When a key is not one, or a pair does not belong together.
    """

    role: str
    server_public: str
    public: str
    secret: str = field(repr=False)
    server_secret: str = field(default="", repr=False)
    allowed: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigurationError(f"keys: role: expected one of {', '.join(ROLES)}, got {self.role!r:.80}")
        pairs = [("public and secret", self.public, self.secret)]
        if self.server_secret:
            pairs.append(("server_public and server_secret", self.server_public, self.server_secret))
        for what, public, secret in pairs:
            if _public_of(secret) != public:
                raise ConfigurationError(f"keys: {what} are not a pair; make new ones with pslib keys make")
        wrong = [key for key in (self.server_public, *self.allowed) if not _is_key(key)]
        if wrong or len(self.allowed) > ALLOWED_MAX:
            raise ConfigurationError(
                f"keys: expected at most {ALLOWED_MAX} keys of {_KEY_CHARS} characters; make new ones with "
                "pslib keys make"
            )
        if unknown := sorted(set(self.allowed.values()) - set(ROLES)):
            raise ConfigurationError(f"keys: allowed: expected roles {', '.join(ROLES)}, got {unknown[0]!r}")

    @property
    def listens(self) -> bool:
        """Return whether these are the keys of a process that listens."""
        return bool(self.server_secret)

    def to_text(self) -> str:
        """Return one line of JSON, secrets included: for key files and a worker's standard input only."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @staticmethod
    def from_text(text: str, source: str) -> Keys:
        """Parse the text of `to_text`; errors name ``source``.

        Raises
        ------
        ConfigurationError
            When it is another text, or these are no keys.
        """
        known = {spec.name: dict if spec.name == "allowed" else str for spec in fields(Keys)}
        try:
            values: Any = json.loads(text) if len(text) <= FILE_BYTES_MAX else None
        except ValueError:  # its text would quote the file, and with it a secret
            values = None
        sound = isinstance(values, dict) and all(
            name in known and type(value) is known[name] for name, value in values.items()
        )
        if not sound or not {"role", "server_public", "public", "secret"} <= set(values):
            raise ConfigurationError(f"{source}: expected a file of pslib keys make, got something else")
        try:
            return Keys(**values)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from None


def _is_key(text: object) -> bool:
    return isinstance(text, str) and len(text) == _KEY_CHARS and text.isascii()


def _public_of(secret: str) -> str | None:
    """Return the public half of a secret; None when it is not one."""
    if not _is_key(secret):
        return None
    try:
        return zmq.curve_public(secret.encode()).decode()
    except (zmq.ZMQError, KeyError):
        return None


def _pair() -> tuple[str, str]:
    if not zmq.has("curve"):
        raise ConfigurationError("this pyzmq can't encrypt; install one from PyPI: pip install pyzmq")
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def make_keys() -> dict[str, Keys]:
    """Generate the keys of a new cluster, by role."""
    server_public, server_secret = _pair()
    pairs = {role: _pair() for role in ROLES}
    made = {role: Keys(role, server_public, *pair) for role, pair in pairs.items()}
    allowed = {public: role for role, (public, _secret) in pairs.items()}
    made["server"] = replace(made["server"], server_secret=server_secret, allowed=allowed)
    return made


def write_keys(folder: str | Path, keys: Mapping[str, Keys]) -> None:
    """Write ``NAME.keys`` for each of ``keys`` into a folder that only its owner may enter.

    Raises
    ------
    ConfigurationError
        When one of the files exists, or can't be written: a key that is in use is never replaced; when others
        can write in the folder.
    """
    place = Path(folder)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (mode := place.stat().st_mode & 0o777) & 0o022:
            raise ConfigurationError(
                f"{place}: expected a folder that others can't write, as they could put keys of their own "
                f"there, got mode {mode:03o}; chmod go-w it, or choose another place"
            )
        for name, own in keys.items():
            _write(place / f"{name}{SUFFIX}", own, os.O_EXCL)
    except FileExistsError as error:
        raise ConfigurationError(f"{error.filename}: there is a key already; choose another place") from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from error


def _write(path: Path, keys: Keys, flags: int) -> None:
    # The mode is given at creation: no other user may open the file before it is set.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "w", encoding="ascii") as file:
        file.write(keys.to_text() + "\n")


def read_keys(path: str | os.PathLike[str]) -> Keys:
    """Read one key file.

    Raises
    ------
    ConfigurationError
        When it is not one, or other users than its owner may read it.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if _is_open(os.fstat(file.fileno())):
                raise ConfigurationError(f"{path}: others may read this key; chmod 600 {path}")
            return Keys.from_text(file.read(FILE_BYTES_MAX + 1), str(path))
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: expected a file of pslib keys make, got something else") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; expected a file of pslib keys make") from error


def _is_open(about: os.stat_result) -> bool:
    """Return whether other users than this one may read or change a file.

    A file of root that this user reads by a group, as a pod does its secrets (``fsGroup``), is not.
    """
    by_group = about.st_uid == 0 and os.geteuid() != 0
    return bool(about.st_mode & (0o037 if by_group else 0o077))


def read_folder(folder: str | Path) -> dict[str, Keys]:
    """Read the four keys that a launcher needs, by role; errors as for `read_keys`."""
    return {role: read_keys(Path(folder) / f"{role}{SUFFIX}") for role in ROLES}


def add_key(folder: str | Path, name: str, role: str) -> Path:
    """Add one key, known to servers that start from now on; return its file.

    Raises
    ------
    ConfigurationError
        When the folder has no ``server.keys``, or there is such a key already.
    """
    if role not in ROLES:
        raise ConfigurationError(f"role: expected one of {', '.join(ROLES)}, got {role!r:.80}")
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r:.80}: expected a name of letters, digits, - and _")
    path = Path(folder) / f"{name}{SUFFIX}"
    with _alone(folder):
        server = read_keys(Path(folder) / f"server{SUFFIX}")
        own = Keys(role, server.server_public, *_pair())
        write_keys(folder, {name: own})
        _replace_server(folder, replace(server, allowed={**server.allowed, own.public: role}))
    return path


def remove_key(folder: str | Path, name: str) -> None:
    """Remove a key: servers that start from now on refuse it. Errors as for `add_key`."""
    path = Path(folder) / f"{name}{SUFFIX}"
    if not _NAME.fullmatch(name) or name == "server":
        raise ConfigurationError(f"{name!r:.80}: expected the name of a key that is not the servers'")
    with _alone(folder):
        gone, server = read_keys(path), read_keys(Path(folder) / f"server{SUFFIX}")
        left = {public: role for public, role in server.allowed.items() if public != gone.public}
        _replace_server(folder, replace(server, allowed=left))
        path.unlink()


@contextmanager
def _alone(folder: str | Path) -> Iterator[None]:
    """Lock a folder of keys: of two concurrent changes of the servers' file, one would be lost."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: {error.strerror}; expected a folder of pslib keys make"
        ) from error
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _replace_server(folder: str | Path, keys: Keys) -> None:
    """Replace the servers' file atomically."""
    path = Path(folder) / f"server{SUFFIX}"
    draft = path.with_suffix(f".{os.getpid()}.draft")
    try:
        _write(draft, keys, os.O_EXCL)
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from error
