"""Parts that commands share: the command class with examples, option types, common options, output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import rich_click as click
from click.shell_completion import CompletionItem

from launch.places.options import HostOptions, RunOptions, place_names
from launch.worker.json_output import write_json
from pslib.config import LOG_FORMAT_VARIABLE
from pslib.text import json_value

if TYPE_CHECKING:
    from launch.job.job import Job


F = TypeVar("F", bound=Callable[..., Any])


MACHINES = "Machines"
"""Part of the help for options of other machines."""


# --- commands and their help


class Command(click.RichCommand):
    """Command whose help ends with examples, never wrapped: they are there to be copied."""

    examples_heading = "Examples:"
    """Heading of the examples."""

    def __init__(self, *args: Any, examples: str = "", ending: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples.strip().splitlines()
        self.ending = ending

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, without the blanks by which rich fills lines."""
        return "\n".join(line.rstrip() for line in super().get_help(ctx).splitlines()).rstrip()

    def format_options(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        """Write arguments, options and options of machines, in this order."""
        if not isinstance(self, click.Group):  # made anew: rich-click adds to them
            arguments = click.RichOptionPanel("Arguments", column_types=["opt_long", "help"])
            self.panels = [arguments, *map(click.RichOptionPanel, ("Options", MACHINES))]
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        """Write the examples, and the ending."""
        from rich.text import Text

        if self.examples:
            lines = "".join(f"\n  {line}" for line in self.examples)
            formatter.write(Text.assemble((self.examples_heading, "bold"), lines), soft_wrap=True)
        if self.ending:
            formatter.write(Text(f"\n{self.ending}"))


class Group(Command, click.RichGroup):  # type: ignore[misc]
    """Group of commands, with examples in its help."""

    command_class = Command


def command(
    name: str, examples: str, cls: type[Command] = Command, **more: Any
) -> Callable[[Callable[..., int]], Command]:
    """Make a command of a function that returns the exit code; its docstring is the help."""
    return click.command(name, cls=cls, examples=examples, **more)


def group(name: str, examples: str, **more: Any) -> Callable[[Callable[..., None]], Group]:
    """Make a group of commands; the docstring is the help."""
    return click.group(name, cls=Group, examples=examples, **more)


# --- types of options


class PathText(click.ParamType[str]):
    """Path or URI of a file or folder, completed by the shell; it may exist or not."""

    def __init__(self, kind: Literal["file", "dir"]) -> None:
        self.name = "folder" if kind == "dir" else "file"
        self.kind = kind

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty text, as from an unset shell variable."""
        if not value:
            self.fail("expected a path, got ''; write '.' for the current folder", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Let the shell complete names of files or folders."""
        return [CompletionItem(incomplete, type=self.kind)]


class _Setting(click.ParamType[str]):
    """``KEY=VALUE``, a setting of the job file; the shell completes its name and its choices."""

    name = "setting"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the settings that begin so, or the values of the one whose ``=`` is written."""
        from launch.job.job import Job
        from launch.job.paths import PATHS
        from launch.job.settings_reference import option_rows, rows_of

        rows = [*rows_of(Job), *{row.path: row for row in option_rows()}.values()]
        key, equals, value = incomplete.partition("=")
        if equals and key in PATHS:
            return [CompletionItem(incomplete, type="file")]
        if equals:
            values = [one for row in rows if row.path == key for one in row.choices if one.startswith(value)]
            return [CompletionItem(f"{key}={one}") for one in values]
        end = "=" if isinstance(param, click.Option) else ""
        found = (row for row in rows if row.path.startswith(incomplete))
        return [CompletionItem(f"{row.path}{end}", help=row.help) for row in found]


class _Passed(click.ParamType[str]):
    """Argument that goes to a script as it is; the shell completes names of files."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Let the shell complete names of files."""
        return [CompletionItem(incomplete, type="file")]


FILE, FOLDER, SETTING, PASSED = PathText("file"), PathText("dir"), _Setting(), _Passed()


# --- common options


def _use_format(context: click.Context, _: click.Parameter, given: str | None) -> str | None:
    """Write lines in the format of ``--log-format`` from now on."""
    if given == "json" and not context.resilient_parsing:
        write_json()
    return given


def option(
    name: str, metavar: str, text: str, kind: Any = str, to: str | None = None, **more: Any
) -> Callable[[F], F]:
    """Return an option with a value; ``text`` is its help, ``to`` the parameter if named otherwise."""
    return click.option(*filter(None, (name, to)), metavar=metavar, help=text, type=kind, **more)


def flag(name: str, text: str, to: str | None = None, **more: Any) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(*filter(None, (name, to)), is_flag=True, help=text, **more)


def choice(name: str, choices: Sequence[str], text: str, **more: Any) -> Callable[[F], F]:
    """Return an option with one of some values."""
    return click.option(name, type=click.Choice(choices), help=text, **more)


def argument(name: str, metavar: str, text: str, kind: Any = str, **more: Any) -> Callable[[F], F]:
    """Return a positional argument."""
    return click.argument(name, metavar=metavar, help=text, type=kind, **more)


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the decorator that adds some options in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


overrides_option = option(
    "--set",
    "KEY=VALUE",
    "one setting in place of the file's, for example training.epochs=2; may be repeated",
    SETTING,
    to="overrides",
    multiple=True,
)
servers_option = option("--servers", "N", "in place of cluster.servers", int)
trainers_option = option("--trainers", "N", "in place of cluster.trainers", int)
job_options = together(
    argument("config", "CONFIG", "the job file (YAML)", FILE), servers_option, overrides_option
)
json_option = flag("--json", "print one JSON object in place of text", to="as_json")
quiet_option = flag("--quiet", "do not show progress: no bar, or lines in a log")
log_format_option = choice(
    "--log-format",
    ("text", "json"),
    f"lines of log files and screen (default: {LOG_FORMAT_VARIABLE}, or cluster.log_format of a job file)",
    envvar=LOG_FORMAT_VARIABLE,
    is_eager=True,  # so that errors in other options are in this format
    callback=_use_format,
)
overwrite_option = flag("--overwrite", "replace files that exist")
where_options = together(
    argument(
        "where", "[WHERE]", "a run's folder, or the coordinator's tcp://host:port", FOLDER, required=False
    ),
    option("--cluster-id", "ID", "of the cluster at an address"),
)


def key_option(text: str) -> Callable[[F], F]:
    """Return the option ``--keys FILE`` with a help text."""
    return option("--keys", "FILE", text, FILE, to="key_file")


def packed(name: str, kind: type, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the decorator that adds options; the function gets them as one dataclass under that name."""

    def add(function: F) -> F:
        @wraps(function)
        def with_one(**given: Any) -> Any:
            own = {one.name: given.pop(one.name) for one in fields(kind)}
            return function(**{name: kind(**own)}, **given)

        return cast(F, together(*options)(with_one))

    return add


class _Port(click.ParamType[int]):
    """Port of this machine; 0 is any free one."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert, and say what to do where the next word of the command line was taken for a port."""
        if str(value).isdecimal() and int(value) < 1 << 16:
            return int(value)
        self.fail(f"expected a port, 0 to 65535, got {value!r}; without one write --ui=0", param, ctx)


ui_option = option(
    "--ui",
    "[PORT]",
    "show the run on a page in the browser, at this port of this machine (default: any free)",
    _Port(),
    is_flag=False,
    flag_value=0,
)


def run_options(out: str) -> Callable[[F], F]:
    """Return the options of a run's folder and records, ``run``; ``out`` is the help of ``--out``."""
    keys = "encrypt, with the keys of this folder (see pslib keys make)"
    resume = "go on with the run in that folder, from its logs or checkpoint"
    return packed(
        "run",
        RunOptions,
        option("--out", "DIR", out, FOLDER),
        option("--keys", "DIR", keys, FOLDER),
        flag("--overwrite", "replace an earlier run in that folder"),
        flag("--resume", resume),
        flag("--tensorboard", "also write event files, into DIR/tensorboard"),
        ui_option,
        quiet_option,
        log_format_option,
    )


machine_options = packed(
    "machines",
    HostOptions,
    choice(
        "--on",
        ("local", *place_names()),
        "where (default: local); slurm: the nodes of the allocation that it is called in; ray: a Ray cluster",
        default="local",
        panel=MACHINES,
    ),
    option(
        "--hosts", "FILE", "for ssh: a line a host, HOST [servers=N] [trainers=N] ...", FILE, panel=MACHINES
    ),
    option("--ssh-config", "FILE", "for ssh: given to it as -F FILE", FILE, panel=MACHINES),
    option(
        "--per-node",
        "TEXT",
        'for slurm: what runs on each node, "servers=N trainers=N" (default: one of each)',
        panel=MACHINES,
    ),
    option(
        "--address", "HOST:PORT", "for ray: of its cluster (default: auto, as for ray itself)", panel=MACHINES
    ),
    option("--cpus", "N", "for ray: CPUs of each server and trainer (default 1)", int, panel=MACHINES),
    flag(
        "--insecure-network",
        "for ray, slurm and ssh: no encryption, though other machines reach coordinator and servers",
        panel=MACHINES,
    ),
    option(
        "--port",
        "N",
        "the coordinator's (default: any free)",
        click.IntRange(0, 65535),
        default=0,
        panel=MACHINES,
    ),
)
"""Options that select the machines of a run, and with ``--servers`` and ``--trainers`` are ``machines``."""


def read_job_with(
    config: str,
    overrides: Sequence[str],
    servers: int | None = None,
    trainers: int | None = None,
    out: str | None = None,
    test_share: float | None = None,
    log_format: str | None = None,
) -> Job:
    """Read a job file with options of the command line in place of its settings."""
    from launch.job.job import read_job
    from launch.job.paths import literal

    changes: dict[str, object] = {}
    if servers is not None:
        changes["cluster.servers"] = servers
    if trainers is not None:
        changes["cluster.trainers"] = trainers
    if test_share is not None:
        changes["data.test_share"] = test_share
    if log_format is not None:
        changes["cluster.log_format"] = log_format
    if out is not None:
        changes["out"] = literal(str(Path(out).resolve()))  # relative to the current folder
    return read_job(config, overrides, changes)


# --- output


def show(plain: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print a result as one JSON object, or as lines."""
    if as_json:
        print(json.dumps(json_value(plain), indent=2, allow_nan=False))
    else:
        for line in lines:
            print(line)


def say(as_json: bool) -> Callable[[str], None]:
    """Return a printer of lines of progress: to standard error where standard output is JSON."""
    return lambda line: print(line, file=sys.stderr if as_json else sys.stdout, flush=True)


@contextmanager
def progress_bar(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """Make a progress bar on a terminal, a counter without a total; elsewhere show nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from pslib.recorder.display import is_terminal

    done = TextColumn(f"{{task.completed:,.0f}}{unit}")
    columns = ("{task.description}", BarColumn(), done, TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not is_terminal(sys.stderr)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.advance(task, more)
