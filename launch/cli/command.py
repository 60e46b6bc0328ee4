"""Parts that commands share: the command class with examples, option types, common options, output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import rich_click as click
from click.shell_completion import CompletionItem

from launch.places.options import HostOptions

if TYPE_CHECKING:
    from launch.job.job import Job

__all__ = [
    "FILE",
    "FOLDER",
    "Command",
    "Group",
    "checkpoint_option",
    "command",
    "data_option",
    "group",
    "job_options",
    "json_option",
    "key_option",
    "machine_options",
    "overrides_option",
    "overwrite_option",
    "progress_bar",
    "quiet_option",
    "read_job_with",
    "run_options",
    "say",
    "servers_option",
    "show",
    "together",
    "trainers_option",
    "where_options",
]

F = TypeVar("F", bound=Callable[..., Any])


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
            self.panels = [arguments, *map(click.RichOptionPanel, ("Options", "Machines"))]
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


def command(name: str, examples: str, **more: Any) -> Callable[[Callable[..., int]], Command]:
    """Make a command of a function that returns the exit code; its docstring is the help."""
    return click.command(name, cls=Command, examples=examples, **more)


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
    """``KEY=VALUE``, a setting of the job file; the shell completes its name."""

    name = "setting"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the settings that begin so."""
        from launch.job.job import Job
        from launch.job.settings_reference import rows_of

        end = "=" if isinstance(param, click.Option) else ""
        rows = (row for row in rows_of(Job) if row.path.startswith(incomplete))
        return [CompletionItem(f"{row.path}{end}", help=row.help) for row in rows]


FILE, FOLDER, SETTING = PathText("file"), PathText("dir"), _Setting()


# --- common options


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return the decorator that adds some options in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    type=SETTING,
    metavar="KEY=VALUE",
    help="one setting in place of the file's, for example training.epochs=2; may be repeated",
)
servers_option = click.option("--servers", type=int, metavar="N", help="in place of cluster.servers")
trainers_option = click.option("--trainers", type=int, metavar="N", help="in place of cluster.trainers")
job_options = together(
    click.argument("config", type=FILE, metavar="CONFIG", help="the job file (YAML)"),
    servers_option,
    overrides_option,
)
json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON object in place of text")
quiet_option = click.option("--quiet", is_flag=True, help="do not show progress: no bar, or lines in a log")
overwrite_option = click.option("--overwrite", is_flag=True, help="replace files that exist")
checkpoint_option = click.option(
    "--checkpoint", type=FOLDER, required=True, metavar="DIR", help="what a run has saved"
)
where_options = together(
    click.argument(
        "where",
        type=FOLDER,
        required=False,
        metavar="[WHERE]",
        help="a run's folder, or the coordinator's tcp://host:port",
    ),
    click.option("--cluster-id", metavar="ID", help="of the cluster at an address"),
)


def data_option(text: str) -> Callable[[F], F]:
    """Return the option ``--data PATH``, which may be repeated, with a help text."""
    return click.option("--data", type=FILE, multiple=True, metavar="PATH", help=text)


def key_option(text: str) -> Callable[[F], F]:
    """Return the option ``--keys FILE`` with a help text."""
    return click.option("--keys", "key_file", type=FILE, metavar="FILE", help=text)


def run_options(out: str) -> Callable[[F], F]:
    """Return the options of a run's folder and records; ``out`` is the help of ``--out``."""
    options = together(
        click.option("--out", type=FOLDER, metavar="DIR", help=out),
        click.option(
            "--keys",
            type=FOLDER,
            metavar="DIR",
            help="encrypt, with the keys of this folder (see pslib keys make)",
        ),
        click.option("--overwrite", is_flag=True, help="replace an earlier run in that folder"),
        click.option(
            "--resume",
            is_flag=True,
            help="go on with the run in that folder, from its logs or checkpoint",
        ),
        click.option("--tensorboard", is_flag=True, help="also write event files, into DIR/tensorboard"),
        quiet_option,
    )

    def add(function: F) -> F:
        @wraps(function)
        def checked(overwrite: bool, resume: bool, **given: Any) -> Any:
            if overwrite and resume:
                raise click.UsageError("--overwrite is not allowed with --resume")
            return function(overwrite=overwrite, resume=resume, **given)

        return cast(F, options(checked))

    return add


def machine_options(function: F) -> F:
    """Add the options that select the machines of a run; the function gets ``machines``, a `HostOptions`."""

    @wraps(function)
    def with_machines(**given: Any) -> Any:
        names = [one.name for one in fields(HostOptions)]
        machines = HostOptions(**{name: given.pop(name) for name in names})
        return function(machines=machines, **given)

    def option(*names: str, **more: Any) -> Callable[[Any], Any]:
        return click.option(*names, panel="Machines", **more)

    options = together(
        option(
            "--on",
            type=click.Choice(("local", "ssh", "slurm")),
            default="local",
            help="where (default: local); slurm: the nodes of the allocation that it is called in",
        ),
        option(
            "--hosts",
            type=FILE,
            metavar="FILE",
            help="for ssh: a line a host, HOST [servers=N] [trainers=N] ...",
        ),
        option("--ssh-config", type=FILE, metavar="FILE", help="for ssh: given to it as -F FILE"),
        option(
            "--per-node",
            metavar="TEXT",
            help='for slurm: what runs on each node, "servers=N trainers=N" (default: one of each)',
        ),
        option(
            "--insecure-network",
            is_flag=True,
            help="for ssh and slurm: no encryption, though other machines reach coordinator and servers",
        ),
        option(
            "--port",
            type=click.IntRange(0, 65535),
            default=0,
            metavar="N",
            help="the coordinator's (default: any free)",
        ),
    )
    return cast(F, options(with_machines))


def read_job_with(
    config: str,
    overrides: Sequence[str],
    servers: int | None = None,
    trainers: int | None = None,
    out: str | None = None,
) -> Job:
    """Read a job file with options of the command line in place of its settings."""
    from launch.job.job import read_job

    changes: dict[str, object] = {}
    if servers is not None:
        changes["cluster.servers"] = servers
    if trainers is not None:
        changes["cluster.trainers"] = trainers
    if out is not None:
        changes["out"] = str(Path(out).resolve())  # of the command line, hence relative to the current folder
    return read_job(config, overrides, changes)


# --- output


def show(plain: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print a result as one JSON object, or as lines."""
    if as_json:
        print(json.dumps(_finite(plain), indent=2, default=str, allow_nan=False))
    else:
        for line in lines:
            print(line)


def _finite(value: Any) -> Any:
    """Convert to what JSON can hold: values that are no finite numbers become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def say(as_json: bool) -> Callable[[str], None]:
    """Return a printer of lines of progress: to standard error where standard output is JSON."""
    return lambda line: print(line, file=sys.stderr if as_json else sys.stdout, flush=True)


@contextmanager
def progress_bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Make a progress bar on a terminal; elsewhere show nothing."""
    from tqdm import tqdm

    from pslib.recorder.display import is_terminal

    disable = not is_terminal(sys.stderr)
    with tqdm(total=total, desc=what, unit=unit, unit_scale=True, leave=False, disable=disable) as bar:
        yield bar.update
