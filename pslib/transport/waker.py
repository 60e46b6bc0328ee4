"""Waker: ends the wait of another thread."""

from __future__ import annotations

import os
import threading

__all__ = ["Waker"]


class Waker:
    """Event file descriptor that ends a wait.

    `wake` comes from any thread, also after `close`: by then the descriptor's number may belong to another
    file, so both check ``_open`` under a lock.
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
        """Clear the event, before the next wait."""
        try:  # not `suppress`: this is on the path of each reply
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)
