"""Suggestions for unknown options and commands."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

__all__ = ["COMMANDS", "behind_the_script", "meant", "meant_choice"]

COMMANDS = {
    "evaluate": "eval",
    "test": "eval",
    "predict": "eval --predictions DIR",
    "score": "eval --predictions DIR",
    "infer": "eval --predictions DIR",
    "export": "checkpoint export",
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


def meant(unknown: Sequence[str], options: Collection[str]) -> str:
    """Return the option with the nearest name, or the setting of the job file with exactly this name.

    Parameters
    ----------
    unknown : sequence of str
        Unknown arguments of the command line.
    options : collection of str
        Options of the command; ``--set`` among them if it reads a job file.

    Returns
    -------
    str
        Suggestion in brackets for the end of the error line, or empty.
    """
    given = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
    near = difflib.get_close_matches(given, options, n=1, cutoff=0.7)
    if near:
        return f" (did you mean {near[0]}?)"
    if "--set" not in options:
        return ""
    word = given[2:].replace("-", "_")
    if setting := _setting(word):
        return f" (did you mean --set {setting}=...?)"
    from launch.job.errors import of_optimizers

    setting = of_optimizers(word)
    return f" (did you mean --set '{setting}', and optimizers.dense alike?)" if setting else ""


def meant_choice(given: str, choices: Collection[str]) -> str:
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
    from launch.job.errors import ELSEWHERE, section_keys
    from launch.job.job import Job

    wanted = ELSEWHERE.get(name, name)
    found = [f"{section}.{wanted}" for section, keys in section_keys(Job).items() if wanted in keys]
    return found[0] if len(found) == 1 else ""
