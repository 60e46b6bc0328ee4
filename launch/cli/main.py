"""The command line: ``pslib COMMAND ...``.

A command's module is imported when it runs or when its help is shown, and imports what is heavy in its
function, so that ``pslib --help`` is quick.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import rich_click as click
from click.exceptions import Exit, NoArgsIsHelpError
from click.shell_completion import get_completion_class, shell_complete

from launch.cli.broken_pipe import keep_output
from launch.cli.command import Group, command, json_option, show
from launch.cli.completion import add_shells
from launch.cli.errors import usage_line
from launch.worker.json_output import restored_output, show_error
from pslib.config import DEBUG_VARIABLE
from pslib.errors import EXIT_DONE, EXIT_INTERRUPTED, ConfigurationError, PslibError

GROUPS = {
    "Train": ("train", "launch", "demo", "verify"),
    "Use a model": ("predict", "serve", "rollback", "nearest", "vectors", "eval", "recommend", "export"),
    "Data": ("describe", "data", "convert"),
    "A run": ("ui", "top", "doctor", "logs", "report", "stop"),
    "A running cluster": ("scale", "server", "forget", "keys"),
    "Checkpoints": ("checkpoint",),
    "Other places": ("k8s", "role"),
    "Planning": ("plan", "bench"),
    "Settings": ("config", "completion", "version"),
}
"""Names of all commands, as the help groups them."""

HOMES = {
    "eval": "evaluate",
    "recommend": "evaluate",
    "rollback": "serve",
    "nearest": "predict",
    "vectors": "predict",
    "describe": "data",
    "server": "cluster.scale",
    "scale": "cluster.scale",
    "keys": "cluster.keys",
    "k8s": "cluster.k8s",
    "role": "cluster.role",
    "bench": "plan",
    "demo": "train",
    "ui": "run.ui",
    "top": "run.top",
    "doctor": "run.doctor",
    "report": "run.report",
    "logs": "run.logs",
    "stop": "run.logs",
}
"""Modules of commands that do not have one of the same name."""

COMPLETE_VARIABLE = "_PSLIB_COMPLETE"
"""Environment variable by which a shell asks for completions; its value names the shell."""

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of the operating system when a file can't be written."""

EXAMPLES = """
pslib demo                                          data that is made, a model that is trained: two minutes
pslib describe clicks/train --out clicks.yaml       what is in your data, and a job file for it
pslib train clicks.yaml --servers 2 --trainers 2
pslib eval runs/clicks clicks/later.parquet         the model of that run, on other data
pslib doctor runs/clicks                            how the run goes, or how it ended
"""

EXIT_CODES = (
    "Exit codes: 0 done, 1 a check found something (doctor, verify, forget), 64 bad configuration or data, "
    "69 a peer is unavailable or was lost, 70 our own fault, 75 asked to leave (SIGTERM), 130 Ctrl-C."
)


class _Commands(Group):
    """All commands, each imported when it is needed."""

    examples_heading = "First steps:"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(
            import_module(f"launch.cli.{HOMES.get(cmd_name, cmd_name)}"), f"{cmd_name}_command"
        )
        return found


@command("version", "pslib version")
@json_option
def version_command(as_json: bool) -> int:
    """Print the version."""
    from pslib import __version__

    python = sys.version.split()[0]
    show({"pslib": __version__, "python": python}, [f"pslib {__version__}, Python {python}"], as_json)
    return EXIT_DONE


@command(
    "completion",
    """
pslib completion bash >> ~/.bashrc
pslib completion zsh >> ~/.zshrc
pslib completion fish > ~/.config/fish/completions/pslib.fish
""",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), help="the shell to complete in")
def completion_command(shell: str) -> int:
    """Print the script by which a shell completes commands, options, choices, settings and files."""
    kind = get_completion_class(shell)
    assert kind is not None
    print(kind(cli, {}, "pslib", COMPLETE_VARIABLE).source())
    return EXIT_DONE


@click.group(
    "pslib",
    cls=_Commands,
    examples=EXAMPLES,
    ending=EXIT_CODES,
    panels=[click.RichCommandPanel(title, commands=list(names)) for title, names in GROUPS.items()],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "rich_help_config": {
            "theme": "default-slim",
            "color_system": None if os.environ.get("NO_COLOR") else "auto",
            "force_terminal": None,
            "max_width": 110,
            "options_table_help_sections": ["help", "required"],
        },
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    help="the same as the command",
    callback=lambda context, _, given: (
        given and not context.resilient_parsing and context.exit(context.invoke(version_command))
    ),
)
def cli() -> None:
    """A sparse parameter server for CTR prediction and recommendation."""


cli.add_command(version_command)
cli.add_command(completion_command)
add_shells()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; tracebacks are shown only with PSLIB_DEBUG=1."""
    keep_output()
    with restored_output():
        return _exit_code(list(sys.argv[1:] if arguments is None else arguments))


def _exit_code(arguments: list[str]) -> int:
    try:
        if asked := os.environ.get(COMPLETE_VARIABLE):
            return shell_complete(cli, {}, "pslib", COMPLETE_VARIABLE, asked)
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else ConfigurationError.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _failed(error)


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context("pslib", arguments) as context:
            code: int = cli.invoke(context)
        return code
    except Exit as ending:
        return ending.exit_code
    except NoArgsIsHelpError as error:
        print(error.ctx.get_help())
        return EXIT_DONE
    except click.UsageError as error:
        show_error(usage_line(error), trace=False)
        return ConfigurationError.exit_code


def _failed(error: Exception) -> int:
    """Report an error in lines; return the exit code."""
    if not isinstance(error, PslibError):
        refused = isinstance(error, OSError) and error.errno in REFUSALS
        return _place_refused(error) if refused else _internal(error)  # type: ignore[arg-type]
    show_error(str(error), trace=os.environ.get(DEBUG_VARIABLE) == "1")
    return error.exit_code


def _place_refused(error: OSError) -> int:
    """Report a full or unwritable disk, which is no internal error; return the exit code."""
    where = f"{error.filename}: " if error.filename else "can't write: "
    show_error(f"{where}{error.strerror}", trace=False)
    return ConfigurationError.exit_code


def _internal(error: Exception) -> int:
    import tempfile
    import traceback

    if os.environ.get(DEBUG_VARIABLE) == "1":
        show_error(f"{type(error).__name__}: {error}", trace=True)
        return PslibError.exit_code
    with tempfile.NamedTemporaryFile(
        "w", prefix="pslib-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(" ".join(sys.argv) + "\n\n")
        traceback.print_exc(file=file)
    first = (str(error).splitlines() or [""])[0]
    show_error(f"our own fault: {type(error).__name__}: {first}; details in {file.name}", trace=False)
    return PslibError.exit_code


if __name__ == "__main__":
    sys.exit(main())
