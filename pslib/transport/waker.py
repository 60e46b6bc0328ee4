"""How one thread ends the wait of another."""

from __future__ import annotations

import os
import threading

__all__ = ["Waker"]


class Waker:
    """An event file descriptor that ends a wait.

    `wake` comes from any thread, also after `close`: by then the number of the descriptor may belong to
    somebody else's file, so both look at ``_open`` under a lock.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = True
        self._lock = threading.Lock()

    def wake(self) -> None:
        """End the wait, or the next one."""
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def drain(self) -> None:
        """Before the next wait."""
        try:  # not `suppress`: this is on the way of each answer
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)
