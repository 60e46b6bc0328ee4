"""Completion of ``KEY=VALUE`` in bash and zsh, beside what click completes; fish needs nothing of it.

Bash cuts a word at ``=`` and takes only what stands behind it. Both shells add a blank after a completed
word, which is wrong after ``KEY=``.
"""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)


class _Bash(BashComplete):
    source_template = BashComplete.source_template.replace(
        "    return 0\n", "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"
    )
    _was_cut = False

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and that one; ``KEY``, ``=`` and ``VALUE`` are one."""
        given, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        words, last = list[str](), ""
        for word in given[: at + 1]:
            self._was_cut = bool(words) and (word == "=" or (last == "=" and not word.startswith("--")))
            words[-1:] = [words[-1] + word] if self._was_cut else [*words[-1:], word]
            last = word
        words += [] if at < len(given) else [""]
        return words[1:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return what stands behind ``KEY=`` where bash has cut the word there."""
        items = super().get_completions(args, incomplete)
        head = incomplete[: incomplete.find("=") + 1] if self._was_cut else ""
        return [CompletionItem(one.value.removeprefix(head), one.type, one.help) for one in items]


class _Zsh(ZshComplete):
    source_template = (
        ZshComplete.source_template.replace("_path_files", "compset -P '*='; _path_files")
        .replace("completions_with_descriptions -U", 'completions_with_descriptions -U "${glue[@]}"')
        .replace(
            '    if [ -n "$completions_with_descriptions" ]',
            '    local -a glue\n    [[ ${completions_with_descriptions[1]} == *=:* ]] && glue=(-S "")\n\n'
            '    if [ -n "$completions_with_descriptions" ]',
        )
    )


def add_shells() -> None:
    """Let click know these shells in place of its own."""
    for kind in (_Bash, _Zsh):
        add_completion_class(kind)
