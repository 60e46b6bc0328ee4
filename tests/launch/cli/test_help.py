"""The help of the commands, their completion and JSON, and the page that is written from them."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich_click as click
from click.shell_completion import get_completion_class

from launch.cli.command import Command, Group
from launch.cli.config import commands_page
from launch.cli.main import COMPLETE_VARIABLE, GROUPS, cli, main
from tests.support.job_folder import refused, save
from tests.support.processes.standin_launch import ROOT

ESCAPE = "\x1b"
PSLIB = (sys.executable, "-P", "-m", "launch.cli.main")


def commands(group: Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command and group, by the words that name it."""
    context = click.RichContext(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert isinstance(found, Command)
        yield (*path, name), found
        if isinstance(found, Group):
            yield from commands(found, (*path, name))


ALL = [pytest.param(words, found, id=" ".join(words)) for words, found in commands()]
NOT_GROUPS = [one for one in ALL if not isinstance(one.values[1], Group)]


def pslib(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, its output a pipe."""
    return subprocess.run(
        [*PSLIB, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def on_terminal(*arguments: str, **environment: str) -> str:
    """Return the output of a command on a terminal."""
    ours, its = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen([*PSLIB, *arguments], cwd=ROOT, env=variables, stdout=its, stderr=its)
    os.close(its)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # the terminal's other end was closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return said.decode()


# --- help ---


@pytest.mark.parametrize(("words", "found"), ALL)
def test_the_help_of_every_command_says_what_it_does_and_shows_an_example_of_it(
    words: tuple[str, ...], found: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert ESCAPE not in said.out
    assert said.out.startswith(f"Usage: pslib {' '.join(words)} ")
    assert found.help
    first = found.help.splitlines()[0]
    assert first.startswith(said.out.splitlines()[2][:40])
    assert first.endswith(".")
    assert found.examples
    for example in found.examples:
        assert example.startswith(f"pslib {' '.join(words)}")
    shown = "".join(f"\n  {example}" for example in found.examples)
    assert said.out.endswith(f"\nExamples:{shown}\n")
    assert not [line for line in said.out.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize(("words", "found"), NOT_GROUPS)
def test_every_option_and_argument_has_a_help(words: tuple[str, ...], found: Command) -> None:
    for one in found.params:
        assert getattr(one, "help", None), (words, one.name)


@pytest.mark.parametrize(
    "example", [line for one in ALL for line in one.values[1].examples] + cli.examples, ids=str
)
def test_every_example_of_the_help_is_read_as_arguments(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.Command.invoke", lambda self, context: 0)  # read, not run
    program, *words = shlex.split(example.partition("   ")[0].partition(" >")[0])
    assert program == "pslib"
    assert main(words) == 0


def test_the_main_help_has_all_commands_in_groups_the_first_steps_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for title, names in GROUPS.items():
        listed = said.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in listed.splitlines() if line[2] != " "] == list(names)
    assert len(cli.examples) == 5
    assert all(f"  {line}\n" in said for line in cli.examples)
    assert "Exit codes: 0 done," in said
    assert "130 Ctrl-C." in said


@pytest.mark.parametrize("words", [(), ("checkpoint",), ("config",)])
def test_a_group_without_a_command_prints_its_help_and_ends_with_0(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    bare = capsys.readouterr()
    assert main([*words, "-h"]) == 0
    assert bare == capsys.readouterr()


def loaded_by(*words: str) -> set[str]:
    """Return the modules that a command has imported at its end, in a process of its own."""
    code = f"import sys; from launch.cli.main import main; assert main({words!r}) == 0; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pyarrow", "zmq", "pydantic", "yaml", "matplotlib"}
    assert not heavy & loaded_by("--help")


def test_a_command_is_imported_only_when_it_runs() -> None:
    loaded = loaded_by("keys", "--help")
    assert "launch.cli.cluster.keys" in loaded
    assert "launch.cli.train" not in loaded


def test_help_is_coloured_on_a_terminal_and_plain_elsewhere() -> None:
    assert ESCAPE in on_terminal("--help")
    assert ESCAPE not in on_terminal("--help", NO_COLOR="1")
    assert ESCAPE not in on_terminal("--help", TERM="dumb")
    assert ESCAPE not in pslib("--help", GITHUB_ACTIONS="true").stdout


# --- wrong options ---


@pytest.mark.parametrize(("words", "found"), NOT_GROUPS)
def test_a_misspelt_option_of_any_command_is_told_the_right_one_and_is_never_an_abbreviation(
    words: tuple[str, ...], found: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [one.opts[-1] for one in found.params if isinstance(one, click.Option)]
    option = max([*options, "--help"], key=len)
    (line,) = refused(capsys, *words, option[:-1])
    assert (
        line == f"no such option: {option[:-1]} (did you mean {option}?); see pslib {' '.join(words)} --help"
    )


# --- completion ---


def completed(shell: str, line: str) -> list[str]:
    """Lines that the shell's script is given for the last word of a command line."""
    words = re.split(" |(?<!=)(?==)|(?<==)(?=[^ =])", line) if shell == "bash" else line.split(" ")
    word = words[-1] if shell == "fish" else str(len(words) - 1)
    asked = {COMPLETE_VARIABLE: f"{shell}_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": word}
    done = pslib(**asked)
    assert (done.returncode, done.stderr) == (0, "")
    return [one for one in done.stdout.splitlines() if one]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_is_given_all_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in capsys.readouterr().out
    given = completed(shell, "pslib ")
    for name in (name for names in GROUPS.values() for name in names):
        assert any(name in line.replace("\t", ",").split(",") for line in given), name


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("pslib tr", "plain,train"),
        ("pslib checkpoint d", "plain,diff"),
        ("pslib train --ov", "plain,--overwrite"),
        ("pslib train job.yaml --on sl", "plain,slurm"),
        ("pslib train clicks", "file,clicks"),
        ("pslib train job.yaml --out ru", "dir,ru"),
        ("pslib train job.yaml --set training.batch_r", "plain,training.batch_rows="),
        ("pslib config show training.batch_r", "plain,training.batch_rows"),
        ("pslib launch train.py ", "file,"),
        ("pslib launch train.py --depth data/d", "file,data/d"),
        ("pslib train job.yaml --on=sl", "plain,slurm"),
        ("pslib train job.yaml --set table.storage=int8 --ov", "plain,--overwrite"),
    ],
)
def test_commands_options_choices_files_and_settings_are_completed(line: str, given: str) -> None:
    assert completed("bash", line) == [given]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("training.consistency=", ["async", "sync", "ssp", "geo"]),
        ("training.consistency=s", ["sync", "ssp"]),
        ("ranking.exclude_seen=", ["true", "false"]),
        ("training.epochs=", []),
    ],
)
@pytest.mark.parametrize(("shell", "head"), [("bash", ""), ("zsh", "KEY="), ("fish", "KEY=")])
def test_the_choices_of_a_setting_are_completed(shell: str, head: str, line: str, values: list[str]) -> None:
    given = [one for one in completed(shell, f"pslib train --set {line}") if one not in ("plain", "_")]
    key = line.partition("=")[0]
    expected = [f"{head.replace('KEY', key)}{value}" for value in values]
    assert [one.removeprefix("plain,").partition("\t")[0] for one in given] == expected


def test_a_setting_that_is_completed_gets_no_blank_behind_its_equals_sign() -> None:
    for shell, line in (("bash", "compopt -o nospace"), ("zsh", "glue=(-S")):
        kind = get_completion_class(shell)
        assert kind is not None
        assert line in kind.source_template
    assert completed("bash", "pslib train --set data.train=cli") == ["file,cli"]
    assert completed("bash", "pslib launch train.py --sc") == []


# --- JSON ---


def test_results_for_machines_are_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = save(tmp_path, "data.parquet")
    (tmp_path / "data.csv").write_text("label,price\n1,2.5\n0,3.5\n")
    for arguments, key in (
        (["version"], "pslib"),
        (["describe", data], "choices"),
        (["data", "check", data], "columns"),
        (["data", "generate", tmp_path / "made", "--rows", 100, "--test-rows", 10], "train"),
        (["convert", "csv", tmp_path / "data.csv", tmp_path / "a.parquet"], "rows"),
        (["config", "show", "training.batch_rows"], "settings"),
        (["plan", "--rows", "5e9", "--trainers", 4], "problems"),
        (["checkpoint", "ls", tmp_path], "checkpoints"),
    ):
        assert main([str(one) for one in (*arguments, "--json")]) == 0
        assert key in json.loads(capsys.readouterr().out), arguments


def test_what_is_not_a_number_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    from launch.cli.command import show

    show({"auc": float("nan"), "by": {1: [float("inf"), 2.0]}}, (), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"auc": None, "by": {"1": [None, 2.0]}}


# --- the page ---


def test_the_page_of_commands_is_the_one_that_the_code_writes() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == commands_page(cli), "pslib config page commands > docs/reference/cli.md"
