"""Ctrl-C during work that can stop between two steps, in a script or notebook of its own."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interruption:
    """Context in which the first Ctrl-C is noted, and a second one raises KeyboardInterrupt at once.

    The work inside polls `asked` and raises KeyboardInterrupt when it stands between two steps; a Ctrl-C that
    it did not see raises at the end of the context. Outside the main thread, and where a program has its own
    handler of SIGINT, nothing is changed.

    Attributes
    ----------
    asked, hurried : bool
        True after the first and the second Ctrl-C. Plain attributes, since a signal handler sets them.
    """

    def __init__(self) -> None:
        self.asked = self.hurried = False
        self._heard = False

    def __enter__(self) -> Interruption:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
            self._heard = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.asked and kind is None:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.hurried = True
            raise KeyboardInterrupt
        self.asked = True
