"""The command line: ``pslib COMMAND ...``.

This module only parses arguments and reports errors, so that ``pslib --help`` is quick. The commands are in
`launch.cli.commands`, imported when one runs.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from launch.cli.broken_pipe import keep_output
from launch.cli.checkpoint import add_checkpoint
from launch.cli.examples import FIRST_STEPS, epilog_of
from launch.places.options import add_hosts
from launch.runs.log_options import add_durability
from pslib.config import DEBUG_VARIABLE
from pslib.errors import EXIT_INTERRUPTED, ConfigurationError, PslibError

__all__ = ["add_retrieval", "build_parser", "main"]


def add_retrieval(
    commands: Any,
    command: Callable[[Any, str, str, str], argparse.ArgumentParser],
    add_job: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add ``recommend`` and ``vectors``; ``command`` makes a parser from (parsers, name, function, help)."""
    recommend = command(commands, "recommend", "recommend", "write the best items of each example")
    vectors = command(commands, "vectors", "vectors", "write the vectors of items or of queries")
    for parser in (recommend, vectors):
        add_job(parser)
        parser.add_argument("--checkpoint", required=True, metavar="DIR", help="what a run has saved")
        parser.add_argument("--out", required=True, metavar="DIR", help="folder for the Parquet files")
    recommend.add_argument(
        "--data", action="append", metavar="PATH", help="examples, in place of data.test; may be repeated"
    )
    recommend.add_argument("-k", type=int, default=20, metavar="N", help="items an example (default 20)")
    recommend.add_argument(
        "--approximate", action="store_true", help="by a graph of the items' vectors; needs faiss"
    )
    vectors.add_argument(
        "--data",
        action="append",
        metavar="PATH",
        help="in place of data.items, or with --side query of data.test; may be repeated",
    )
    vectors.add_argument("--side", choices=("item", "query"), default="item", help="of which (default item)")


PORT_MAX = 65535

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of the operating system when a file can't be written."""

EPILOG = """exit codes: 0 done, 64 bad configuration or data, 69 a peer is unavailable or was lost,
70 our own fault, 75 asked to leave (SIGTERM), 130 Ctrl-C"""


class _Parser(argparse.ArgumentParser):
    """ArgumentParser whose errors are one line and exit code 64."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here: the parent parser knows none of this command's options."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return known, unknown

    def _meant(self, unknown: Sequence[str]) -> str:
        from launch.job.suggestions import meant

        return meant(unknown, self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from launch.job.suggestions import meant_choice

            error.message += meant_choice(str(value), [str(one) for one in action.choices or ()])
            raise

    @property
    def options(self) -> frozenset[str]:
        """All option strings of this command."""
        return frozenset(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        print(f"pslib: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(ConfigurationError.exit_code)


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        sys.exit(main(["version"]))


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; tracebacks are shown only with PSLIB_DEBUG=1."""
    keep_output()
    try:
        return _run(build_parser().parse_args(arguments))
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else ConfigurationError.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    try:
        from launch.cli import checkpoint, commands

        of = checkpoint if options.command_function.startswith("checkpoint_") else commands
        code: int = getattr(of, options.command_function)(options)
        sys.stdout.flush()
        return code
    except PslibError as error:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            traceback.print_exc()
        for line in str(error).splitlines():
            print(f"pslib: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        raise
    except OSError as error:
        return _place_refused(error) if error.errno in REFUSALS else _internal(error)
    except Exception as error:
        return _internal(error)


def _place_refused(error: OSError) -> int:
    """Report a full or unwritable disk, which is no internal error; return the exit code."""
    where = f"{error.filename}: " if error.filename else "can't write: "
    print(f"pslib: {where}{error.strerror}", file=sys.stderr)
    return ConfigurationError.exit_code


def _internal(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exc()
        return PslibError.exit_code
    with tempfile.NamedTemporaryFile(
        "w", prefix="pslib-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(" ".join(sys.argv) + "\n\n")
        traceback.print_exc(file=file)
    first = (str(error).splitlines() or [""])[0]
    print(f"pslib: our own fault: {type(error).__name__}: {first}; details in {file.name}", file=sys.stderr)
    return PslibError.exit_code


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _Parser(
        prog="pslib",
        description="A sparse parameter server for CTR prediction and recommendation.",
        epilog=f"{FIRST_STEPS}\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="the same as the command")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_eval(commands)
    add_retrieval(commands, _command, _add_job)
    _add_launch(commands)
    _add_demo(commands)
    _add_convert(commands)
    _add_describe(commands)
    _add_data(commands)
    _add_config(commands)
    _add_keys(commands)
    _add_doctor(commands)
    _add_verify(commands)
    _add_forget(commands)
    _add_scale(commands)
    _add_plan(commands)
    _add_bench(commands)
    add_checkpoint(commands, _command)
    _command(commands, "version", "version", "print the version")
    return parser


def _command(commands: _Commands, name: str, function: str, text: str) -> _Parser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.epilog = epilog_of(parser.prog)
    parser.set_defaults(command_function=function)
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the job file (YAML)")
    parser.add_argument("--servers", type=int, metavar="N", help="in place of cluster.servers")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting in place of the file's, for example training.epochs=2; may be repeated",
    )


def _port(text: str) -> int:
    """Parse a port number for argparse, which names the option when this raises."""
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"expected a port from 0 (any) to {PORT_MAX}, got {text!r}")
    return port


def _folder(text: str) -> str:
    """Parse a folder for argparse; refuse an empty text, as from an unset shell variable."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''; write '.' for the current folder")
    return text


def _add_run(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--out", type=_folder, metavar="DIR", help=out)
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="the coordinator's (default: any free)"
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="encrypt, with the keys of this folder (see pslib keys make)"
    )
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--overwrite", action="store_true", help="replace an earlier run in that folder")
    earlier.add_argument(
        "--resume", action="store_true", help="go on with the run in that folder, from its logs or checkpoint"
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write event files, into DIR/tensorboard"
    )
    parser.add_argument("--quiet", action="store_true", help="no bar, or lines in a log, of progress")


def _add_train(commands: _Commands) -> None:
    parser = _command(commands, "train", "train", "train, test and save the model of a job file")
    _add_job(parser)
    add_hosts(parser)
    parser.add_argument("--trainers", type=int, metavar="N", help="in place of cluster.trainers")
    _add_run(parser, "folder of the run, in place of the file's")


def _add_eval(commands: _Commands) -> None:
    parser = _command(commands, "eval", "evaluate", "evaluate a checkpoint")
    _add_job(parser)
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="what a run has saved")
    parser.add_argument(
        "--data", action="append", metavar="PATH", help="in place of data.test; may be repeated"
    )
    parser.add_argument(
        "--predictions",
        metavar="DIR",
        help="write the prediction of each example there (Parquet); needs no label",
    )
    parser.add_argument("--label", metavar="NAME", help="whose task, of several labels (default: the first)")


def _add_launch(commands: _Commands) -> None:
    parser = _command(
        commands, "launch", "launch", "run a script of yours in every trainer of a cluster, unchanged"
    )
    add_hosts(parser)
    parser.add_argument("--servers", type=int, metavar="N", help="server processes (local; default 1)")
    parser.add_argument("--trainers", type=int, metavar="N", help="trainer processes (local; default 1)")
    parser.add_argument(
        "--shard-threads", type=int, default=1, metavar="N", help="threads of a server (default 1)"
    )
    parser.add_argument(
        "--server-memory-bytes",
        type=int,
        default=0,
        metavar="N",
        help="what the tables of a server may take (default: no limit)",
    )
    parser.add_argument(
        "--drain-s",
        type=float,
        default=20.0,
        metavar="S",
        help="what a trainer may take to leave on SIGTERM (default 20)",
    )
    add_durability(parser)
    _add_run(parser, "folder for logs and records (default: logs in a temporary one)")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file that calls pslib.connect()")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments"
    )
    parser.set_defaults(launch_options=parser.options)


def _add_demo(commands: _Commands) -> None:
    parser = _command(
        commands,
        "demo",
        "demo",
        "make data whose best AUC is known, and train DeepFM with 2 servers and 2 trainers",
    )
    parser.add_argument(
        "--out",
        type=_folder,
        default="runs/demo",
        metavar="DIR",
        help="folder of the run (default: runs/demo)",
    )
    parser.add_argument("--quiet", action="store_true", help="no bar, or lines in a log, of progress")


def _add_config(commands: _Commands) -> None:
    parser = commands.add_parser(
        "config", help="say what a job file may hold", description="Say what a job file may hold."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _command(actions, "schema", "config_schema", "write the JSON schema of job files, for editors")
    _command(actions, "page", "config_page", "write docs/reference/settings.md")
    show = _command(actions, "show", "config_show", "say type, bounds, unit, default and sense of settings")
    show.add_argument(
        "setting", nargs="?", default="", help="training.batch_rows, or a section; all by default"
    )


def _add_keys(commands: _Commands) -> None:
    from launch.places.keys import add_keys_options

    add_keys_options(_command(commands, "keys", "keys", "make and keep the keys of encrypted clusters"))


def _add_doctor(commands: _Commands) -> None:
    from launch.cli.doctor import add_doctor

    add_doctor(_command(commands, "doctor", "doctor", "say who waits for whom in a running cluster, and why"))


def _add_verify(commands: _Commands) -> None:
    from launch.cli.verify import add_verify

    parser = _command(
        commands, "verify", "verify", "compare the cluster's training with that of one batch after the other"
    )
    _add_job(parser)
    add_verify(parser)


def _add_forget(commands: _Commands) -> None:
    from launch.cli.forget import add_forget

    add_forget(
        _command(commands, "forget", "forget", "take rows of some keys out of servers and checkpoints")
    )


def _add_scale(commands: _Commands) -> None:
    from launch.cli.scale import add_scale, add_server

    add_scale(
        _command(commands, "scale", "scale", "let more or fewer servers own the rows of a running cluster")
    )
    add_server(_command(commands, "server", "server", "join a running cluster as one more server"))


def _add_plan(commands: _Commands) -> None:
    from launch.cli.plan import add_plan

    add_plan(_command(commands, "plan", "plan", "say how many machines a model needs and what breaks first"))


def _add_bench(commands: _Commands) -> None:
    parser = commands.add_parser("bench", help="measure this machine", description="Measure this machine.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    calibrate = _command(
        actions, "calibrate", "calibrate", "measure what pslib plan counts with, in about two minutes"
    )
    calibrate.add_argument("--json", metavar="FILE", help="write the coefficients there, for pslib plan")
    calibrate.add_argument("--quick", action="store_true", help="in seconds, and less exactly")
    calibrate.add_argument(
        "--products",
        choices=["float32", "bfloat16"],
        default="float32",
        help="what trainings multiply in, as training.products of a job file (default: float32)",
    )


def _add_convert(commands: _Commands) -> None:
    parser = commands.add_parser(
        "convert",
        help="make a Parquet file of a text file",
        description="Make a Parquet file of a text file.",
    )
    formats = parser.add_subparsers(title="formats", metavar="FORMAT", required=True, dest="format")
    for name, text in (
        ("criteo", "Criteo's click logs: label, 13 numbers, 26 categories, tabs, no header"),
        ("csv", "comma-separated values whose first line names the columns"),
        ("jsonl", "JSON lines: an object a line"),
        ("libsvm", "label index:value ..., as one list column of ids"),
        ("libffm", "label field:index:value ..., as a column a field"),
    ):
        one = _command(formats, name, "convert", text)
        one.add_argument("source", metavar="SRC", help="the text file")
        one.add_argument("out", metavar="OUT", help="the Parquet file")
        one.add_argument("--overwrite", action="store_true", help="replace OUT where it exists")
        one.add_argument(
            "--rejects-max-share",
            type=float,
            default=0.001,
            metavar="SHARE",
            help="largest share of records that can't be read (default 0.001)",
        )
        if name in ("csv", "jsonl"):
            _add_columns(one)
        if name == "csv":
            one.add_argument(
                "--integers", type=_names, metavar="NAMES", help="key columns to store as integers"
            )
            one.add_argument(
                "--delimiter", default=",", metavar="C", help="one character, or tab (default: ,)"
            )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--label", default="label", metavar="NAME", help="column of 0 and 1 (default: label)")
    parser.add_argument("--dense", type=_names, metavar="NAMES", help="number columns, with commas between")
    parser.add_argument("--sparse", type=_names, metavar="NAMES", help="key columns, with commas between")


def _add_describe(commands: _Commands) -> None:
    parser = _command(commands, "describe", "describe", "say what is in Parquet files, and propose a schema")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file, a folder or a pattern")
    parser.add_argument(
        "--label", metavar="NAME", help="column of 0 and 1 (default: label, click or the only)"
    )
    parser.add_argument("--out", metavar="CONFIG", help="write a job file to train them")
    parser.add_argument("--overwrite", action="store_true", help="replace CONFIG where it exists")


def _add_data(commands: _Commands) -> None:
    parser = commands.add_parser(
        "data", help="look at data, or make some", description="Look at data, or make some."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = _command(actions, "check", "data_check", "say what is in Parquet files, and the first bad value")
    check.add_argument("files", nargs="+", metavar="FILE", help="a file, a folder or a pattern")
    check.add_argument("--config", metavar="CONFIG", help="a job file, for its schema")
    check.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="as in train"
    )
    make = _command(actions, "generate", "data_generate", "make click data whose best possible AUC is known")
    make.add_argument("out", metavar="DIR", help="folder for train.parquet and test.parquet")
    make.add_argument("--rows", type=int, default=400_000, metavar="N", help="to train on (default 400,000)")
    make.add_argument(
        "--test-rows", type=int, default=100_000, metavar="N", help="to test on (default 100,000)"
    )
    make.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed, the same data (default 1)"
    )
    make.add_argument("--overwrite", action="store_true", help="replace files that exist")


if __name__ == "__main__":
    sys.exit(main())
