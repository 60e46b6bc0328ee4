"""Stacks of this process's threads, as text."""

from __future__ import annotations

import sys
import threading
import traceback

STACKS_CHARS_MAX = 64_000
"""Longest text, so that it fits a heartbeat: some 20 threads of 30 frames."""


def stacks_text() -> str:
    """Return where each Python thread of this process is, the main thread first.

    There are no values of variables in it: only names of files, functions and lines of code.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "")))
    parts = [
        f"thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in frames
    ]
    return "\n".join(parts)[:STACKS_CHARS_MAX]
