"""Wrong command lines: one line that says what is wrong, what was probably meant, and where to read on."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

import rich_click as click
from click.exceptions import NoSuchCommand

from pslib.suggestions import ELSEWHERE
from pslib.text import as_line

COMMANDS = {
    "evaluate": "eval",
    "test": "eval",
    "score": "predict",
    "infer": "predict",
    "embeddings": "vectors",
    "stream": "train, with data.stream in the job file",
    "resume": "train --resume",
    "check": "data check",
    "generate": "data generate",
    "diff": "checkpoint diff",
    "compare": "checkpoint diff",
    "status": "doctor",
}
"""Commands by their names in other tools."""

VECTORS = "pslib vectors CHECKPOINT FIELD --data PATH --out FILE, where FIELD may be item or query"
FORMER = {("vectors", option): VECTORS for option in ("--checkpoint", "--side", "--set", "--servers")} | {
    ("eval", "--data"): "pslib eval RUN DATA, where RUN is the run's folder",
    ("recommend", "--data"): "pslib recommend RUN DATA --out DIR, where RUN is the run's folder",
}
"""Commands by options that an earlier form of them had, with the form of today."""


def usage_line(error: click.UsageError) -> str:
    """Return the line of a wrong command line, without ``pslib:``."""
    context = error.ctx
    line = as_line(_what_is_wrong(error, context))
    return f"{line}; see {context.command_path if context else 'pslib COMMAND'} --help"


def options_of(context: click.Context | None) -> list[str]:
    """Return all option strings of a command."""
    parameters = context.command.get_params(context) if context else ()
    return [name for one in parameters if isinstance(one, click.Option) for name in one.opts]


def _what_is_wrong(error: click.UsageError, context: click.Context | None) -> str:
    if isinstance(error, click.NoSuchOption):
        if now := FORMER.get((str(context.info_name), error.option_name)) if context else None:
            return f"no such option: {error.option_name}; the form is now: {now}"
        return f"no such option: {error.option_name}{_meant_option(error.option_name, options_of(context))}"
    if isinstance(error, NoSuchCommand) and context and isinstance(context.command, click.Group):
        known = context.command.list_commands(context)
        meant = _meant_choice(error.command_name, known) or f" (choose from {', '.join(known)})"
        return f"no such command: {error.command_name}{meant}"
    if isinstance(error, click.MissingParameter) and error.param:
        kind = "option" if isinstance(error.param, click.Option) else "argument"
        return f"missing {kind} {_name_of(error.param)}"
    if isinstance(error, click.BadParameter) and error.param:
        kinds = error.param.type
        given = error.message.partition(" ")[0].strip("'")
        meant = _meant_choice(given, kinds.choices) if isinstance(kinds, click.Choice) else ""
        return f"{_name_of(error.param)}: {error.message.rstrip('.')}{meant}"
    message = error.format_message().rstrip(".")
    return message[:1].lower() + message[1:]


def _name_of(parameter: click.Parameter) -> str:
    """Return the longest name of an option, or the word for an argument in the usage line."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or str(parameter.name).upper()).strip("[].")


def _meant_option(given: str, options: Collection[str]) -> str:
    """Return the option with the nearest name, or the setting of the job file with exactly this name.

    Parameters
    ----------
    given : str
        Unknown option.
    options : collection of str
        Options of the command; ``--set`` among them if it reads a job file.

    Returns
    -------
    str
        Suggestion in brackets for the end of the error line, or empty.
    """
    word = given.lstrip("-").replace("-", "_")
    same = f"--{ELSEWHERE.get(word, '')}".replace("_", "-")
    near = [same] if same in options else difflib.get_close_matches(given, options, n=1, cutoff=0.7)
    if near:
        return f" (did you mean {near[0]}?)"
    if "--set" not in options:
        return ""
    if setting := _setting(word):
        return f" (did you mean --set {setting}=...?)"
    from launch.job.errors import of_optimizers

    setting = of_optimizers(word)
    return f" (did you mean --set '{setting}', and optimizers.dense alike?)" if setting else ""


def _meant_choice(given: str, choices: Sequence[str]) -> str:
    """Return the command for a name in another tool, or the nearest choice; in brackets, or empty."""
    command = COMMANDS.get(given, "")
    if command.partition(" ")[0].rstrip(",") in choices:
        return f" (did you mean {command}?)"
    near = difflib.get_close_matches(given, choices, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def behind_the_script(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Return options of ``pslib launch`` among a script's own arguments, each once; none after a ``--``.

    The script may have options with these names, so this is only a hint.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = dict.fromkeys(word.partition("=")[0] for word in own if word.startswith("--"))
    return [option for option in given if option in options and option != "--help"]


def _setting(name: str) -> str:
    """Return ``section.name`` if exactly one section has such a key; else empty."""
    from launch.job.errors import section_keys
    from launch.job.job import Job

    wanted = ELSEWHERE.get(name, name)
    found = [f"{section}.{wanted}" for section, keys in section_keys(Job).items() if wanted in keys]
    return found[0] if len(found) == 1 else ""
