"""What somebody meant by an option that a command does not have, or by a command that there is not."""

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
"""Words of other tools for what a command here does."""


def meant(unknown: Sequence[str], options: Collection[str]) -> str:
    """The option whose name is nearest, or the setting of the job file (or of optimizers) of this very name.

    Parameters
    ----------
    unknown : sequence of str
        What the command line holds and the command does not know.
    options : collection of str
        What the command knows; ``--set`` among them where it reads a job file.

    Returns
    -------
    str
        Words in brackets that follow the error, or none.
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
    """The command for a word of another tool, or the choice that is nearest; in brackets, or nothing."""
    command = COMMANDS.get(given, "")
    if command.partition(" ")[0].rstrip(",") in choices:
        return f" (did you mean {command}?)"
    near = difflib.get_close_matches(given, choices, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def behind_the_script(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Options of ``pslib launch`` among a script's own arguments, each once; none after a ``--``.

    The script may have options of these names, so that they can only be pointed out.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = dict.fromkeys(word.partition("=")[0] for word in own if word.startswith("--"))
    return [option for option in given if option in options and option != "--help"]


def _setting(name: str) -> str:
    """``section.name`` of the one section that has such a key; empty where none or several have it."""
    from launch.job.errors import ELSEWHERE, section_keys
    from launch.job.job import Job

    wanted = ELSEWHERE.get(name, name)
    found = [f"{section}.{wanted}" for section, keys in section_keys(Job).items() if wanted in keys]
    return found[0] if len(found) == 1 else ""
