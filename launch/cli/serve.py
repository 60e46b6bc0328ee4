"""``pslib serve``: answer requests over HTTP with the model of a checkpoint; ``pslib rollback``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import rich_click as click

from launch.cli.command import FILE, argument, command, flag, key_option, option, packed
from pslib.errors import EXIT_DONE, ConfigurationError
from pslib.serving.settings import ServeSettings
from pslib.settings import Setting
from pslib.validation import hints_of

if TYPE_CHECKING:
    from pslib.serving.repository import Follow
    from pslib.transport import ZmqTransport

EXTRA = "pslib serve needs the extra serve: pip install 'sparse-pslib[serve]'"


def setting_options(kind: type) -> list[Any]:
    """Return an option for each field of a settings class, with its help and bounds."""
    made = []
    for one in fields(kind):
        hint = hints_of(kind, extras=True)[one.name]
        setting = next(extra for extra in hint.__metadata__ if isinstance(extra, Setting))
        name = f"--{one.name.replace('_', '-')}"
        text = f"{setting.help[0].lower()}{setting.help[1:].rstrip('.')} (default: {one.default})"
        made.append(option(name, setting.unit.upper() or "N", text, hint.__origin__, default=one.default))
    return made


@command(
    "serve",
    """
pslib serve runs/clicks
pslib serve clicks=runs/clicks/checkpoint likes=runs/likes --port 8080
pslib serve runs/clicks --follow --max-age-s 10
""",
)
@argument(
    "sources",
    "[NAME=]CHECKPOINT...",
    "a checkpoint, or a folder of numbered ones or of a run: its newest (name: that of the folder)",
    nargs=-1,
    required=True,
)
@option("--host", "ADDRESS", "where it listens (default: this machine alone)", default="127.0.0.1")
@option("--port", "PORT", "0: any free one", click.IntRange(0, 65535), default=8080)
@flag("--follow", "follow the training of a run: its rows as of half a second ago, see --follow-s")
@option("--follow-keys", "FILE", "a reader's key of an encrypted training", FILE)
@option("--zmq", "ADDRESS", "listen for ZeroMQ clients too, for example tcp://127.0.0.1:8081")
@key_option("a server's key, to encrypt ZeroMQ's links")
@flag("--insecure-network", "listen for ZeroMQ clients of other machines without encryption")
@option("--admin-token-file", "FILE", "token of requests that change versions, from other machines too", FILE)
@packed("settings", ServeSettings, *setting_options(ServeSettings))
def serve_command(
    sources: tuple[str, ...],
    host: str,
    port: int,
    follow: bool,
    follow_keys: str | None,
    zmq: str | None,
    key_file: str | None,
    insecure_network: bool,
    admin_token_file: str | None,
    settings: ServeSettings,
) -> int:
    """Serve predictions over HTTP: Open Inference Protocol v2, and plain records at /predict.

    Newer checkpoints of a folder are taken as they come; requests under way end with the version before. It
    ends on SIGTERM or Ctrl-C, when the requests under way are answered.
    """
    from pslib.process.shutdown import preemption

    preemption.install()  # as process 1 of a container it has no default for SIGTERM
    try:
        from pslib.serving.process import listen, serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{EXTRA} ({error.name} is missing)") from error
    from pslib import __version__
    from rec_models.saved import load

    named = dict(_named(source) for source in sources)
    if len(named) < len(sources):
        raise ConfigurationError("serve: expected each name once; name one by NAME=CHECKPOINT")
    if follow_keys and not follow:
        raise ConfigurationError("--follow-keys: expected --follow with it")
    token = _token_in(admin_token_file) if admin_token_file else ""
    with listen(host, port) as listener, _transport(key_file, insecure_network) as transport:
        link = transport.listen(zmq) if zmq is not None else None
        opened = _opener(settings, follow_keys) if follow else None
        serve(named, load, settings, listener, _say, token, __version__, link, opened)
    return EXIT_DONE


@command(
    "rollback",
    """
pslib rollback http://127.0.0.1:8080 clicks
pslib rollback https://models.example clicks --version 1220 --admin-token-file token
""",
)
@argument("url", "URL", "of a server that pslib serve started")
@argument("model", "MODEL", "its name")
@option("--version", "N", "a version that is kept (default: the one before the one that answers)")
@option("--admin-token-file", "FILE", "the server's, from another machine", FILE)
def rollback_command(url: str, model: str, version: str | None, admin_token_file: str | None) -> int:
    """Let an older version of a served model answer, at once.

    The server takes no newer checkpoint until it is asked to: POST /v2/repository/models/MODEL/load.
    """
    token = _token_in(admin_token_file) if admin_token_file else ""
    given = {} if version is None else {"version": version}
    from pslib.serving.http_client import ask

    answer = ask(url, f"/v2/repository/models/{quote(model, safe='')}/rollback", given, token)
    print(f"{model}: version {answer.get('version')} answers; no newer one is taken until a load")
    return EXIT_DONE


def _opener(settings: ServeSettings, keys: str | None) -> Follow:
    """Return a function that opens models which follow the clusters of their runs."""
    from pslib.clock import SystemClock
    from pslib.scoring import LoadedModel
    from pslib.serving.follower import Follower
    from rec_models.saved import model_of

    def follow(source: str, path: str) -> tuple[LoadedModel, Follower]:
        follower = Follower(source, keys, settings, SystemClock(), _say)
        try:
            return LoadedModel(path, model_of(path), parameters=follower.open), follower
        except BaseException:
            follower.close()
            raise

    return follow


@contextmanager
def _transport(key_file: str | None, insecure_network: bool) -> Iterator[ZmqTransport]:
    from pslib.transport import ZmqTransport
    from pslib.transport.keys import read_keys

    keys = read_keys(key_file) if key_file is not None else None
    transport = ZmqTransport(insecure_network=insecure_network, keys=keys)
    try:
        yield transport
    finally:
        transport.close()


def _say(line: str) -> None:
    print(f"pslib: {line}", file=sys.stderr, flush=True)


def _named(source: str) -> tuple[str, str]:
    """Return name and place of ``NAME=PLACE``, or of a place, whose name is that of its folder or run."""
    from pslib.storage import parent_and_name, place_of

    name, equals, place = source.partition("=")
    if equals and name.replace("-", "_").isidentifier():
        return name, place_of(place)
    found = place_of(source)
    parent, own = parent_and_name(found)
    return (parent_and_name(parent)[1] if own.startswith("checkpoint") and parent else own), found


def _token_in(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            token = opened.read().strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(f"--admin-token-file: {file}: {why}; give a file with the token") from error
    if len(token) < 16 or not (token.isascii() and token.isprintable()):  # it becomes a header
        raise ConfigurationError(
            f"--admin-token-file: {file}: expected one line of 16 or more characters of ASCII"
        )
    return token
