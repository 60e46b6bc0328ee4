"""``pslib config``: what a job file may hold; and the pages of settings and of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import rich_click as click

from launch.cli.command import SETTING, Command, Group, argument, group, json_option, show
from pslib.errors import EXIT_DONE


@group("config", "pslib config show training")
def config_command() -> None:
    """Say what a job file may hold."""


@config_command.command("schema", examples="pslib config schema > job.schema.json")
def schema_command() -> int:
    """Write the JSON schema of job files, for editors."""
    from launch.job.settings_reference import job_schema

    print(json.dumps(job_schema(), indent=2, allow_nan=False))
    return EXIT_DONE


@config_command.command(
    "page",
    examples="""
pslib config page > docs/reference/settings.md
pslib config page commands > docs/reference/cli.md
pslib config page dashboard > dashboard.json
pslib config page alerts > alert_rules.yaml
""",
)
@click.argument(
    "which",
    type=click.Choice(("settings", "commands", "metrics", "dashboard", "alerts")),
    default="settings",
    help="default: settings",
)
@click.pass_context
def page_command(context: click.Context, which: str) -> int:
    """Write a reference page, or a file for other programs.

    These are the pages of settings and of the command line, the section of metrics for Prometheus, a
    dashboard of Grafana, and alert rules of Prometheus.
    """
    from launch.job.settings_reference import settings_page
    from pslib.monitor.prometheus import file_text, metrics_section

    pages: dict[str, Callable[[], str]] = {
        "settings": settings_page,
        "commands": lambda: commands_page(context.find_root().command),
        "metrics": metrics_section,
        "dashboard": lambda: file_text("grafana_dashboard.json"),
        "alerts": lambda: file_text("alert_rules.yaml"),
    }
    print(pages[which](), end="")
    return EXIT_DONE


@config_command.command("show", examples="pslib config show training.batch_rows")
@argument("setting", "[SETTING]", "training.batch_rows, or a section; all by default", SETTING, default="")
@json_option
def show_command(setting: str, as_json: bool) -> int:
    """Say type, bounds, unit, default and sense of settings."""
    from launch.job.settings_reference import settings_at, settings_text

    rows = [asdict(row) for row in settings_at(setting)]
    show({"settings": rows}, settings_text(setting).splitlines(), as_json)
    return EXIT_DONE


INTRODUCTION = """# Commands

Written from the code by `pslib config page commands`; `pslib COMMAND --help` says the same in a terminal.

- Completion of commands, options, choices, settings and files: `pslib completion bash >> ~/.bashrc`; also
  for zsh and fish.
- `--json`, where a command has it, prints one JSON object on standard output and nothing else there; numbers
  that are not finite are null. Progress and errors go to standard error. (`pslib bench calibrate --json FILE`
  writes a file.)
- Colours and progress bars are for terminals only: in a pipe, a file or a terminal with `TERM=dumb` there are
  plain lines. `NO_COLOR=1` turns colours off.
- An error is one line on standard error that begins with `pslib:`. `PSLIB_DEBUG=1` adds the traceback.
- Exit codes: [exit_codes.md](exit_codes.md).
"""


def commands_page(root: click.Command) -> str:
    """Return ``docs/reference/cli.md``."""
    assert isinstance(root, Group)
    lines = [INTRODUCTION]
    context = click.RichContext(root, info_name="pslib")
    for panel in root.panels:
        lines.append(f"## {panel.name}\n")
        for name in panel.objects:
            found = root.get_command(context, name)
            assert found is not None
            lines += _section(found, context)
    return "\n".join(lines)


def _section(found: click.Command, above: click.Context) -> Iterator[str]:
    """Return the lines of a command, or of a group and its commands."""
    context = click.RichContext(found, info_name=found.name, parent=above)
    if isinstance(found, Group):
        for name in found.list_commands(context):
            one = found.get_command(context, name)
            assert one is not None
            yield from _section(one, context)
        return
    assert isinstance(found, Command)
    yield f"### `{context.command_path}`\n"
    yield f"{_flowing(found.help or '')}\n"
    usage = " ".join([context.command_path, *found.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    rows = list(_rows(found, context))
    if rows:
        yield "\n".join(["| argument or option | value | what |", "|---|---|---|", *rows, ""])
    yield "\n".join(["```sh", *found.examples, "```", ""])


def _flowing(text: str) -> str:
    """Join the lines of each paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _rows(found: Command, context: click.Context) -> Iterator[str]:
    """Return a row of the table for each argument and option."""
    for one in found.params:
        assert isinstance(one, click.RichArgument | click.RichOption)
        if isinstance(one, click.RichArgument):
            names, value = one.make_metavar(context).strip("[].").replace("...", ""), ""
        else:
            names = ", ".join(one.opts)
            value = "" if one.is_flag else one.make_metavar(context).strip("[]")
        needed = " (required)" if one.required else ""
        cells = (f"`{names}`", f"`{value}`" if value else "", f"{one.help or ''}{needed}")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
