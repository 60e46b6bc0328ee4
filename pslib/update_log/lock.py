"""One owner of a folder at a time: a lock that ends with its process, and a number that rises each time."""

from __future__ import annotations

from pslib.clock import AwakeClock, Clock
from pslib.errors import LogCorruptError, UnavailableError
from pslib.update_log.files import LogFiles, in_words

__all__ = ["claim"]

LOCK, NUMBER = "lock", "generation"
TRY_AGAIN_S = 0.05


def claim(files: LogFiles, clock: Clock, patience_s: float, place: str) -> int:
    """Own a folder until this process ends; return how often it has been owned before.

    A predecessor that still holds it is waited for: a killed one lets go within milliseconds, one that is
    stopped holds it until somebody ends it. The number is durable before this returns.

    Parameters
    ----------
    files : LogFiles
        The folder; it is closed when it can't be had.
    clock : Clock
        The machine's.
    patience_s : float
        How long to wait for the predecessor; time in which this process was stopped is no part of it.
    place : str
        Its name, for messages.

    Raises
    ------
    UnavailableError
        When somebody else still owns it after ``patience_s``.
    LogCorruptError
        When the number can't be read.
    LogFullError
        When there is no space for the next one.
    """
    try:
        with in_words(place):
            return _claimed(files, AwakeClock(clock), patience_s, place)
    except BaseException:
        files.close()  # or the lock would be held as long as this process lives
        raise


def _claimed(files: LogFiles, clock: Clock, patience_s: float, place: str) -> int:
    end_s = clock.now_s() + patience_s
    while not files.lock(LOCK):
        if clock.now_s() >= end_s:
            raise UnavailableError(
                f"{place}: another process has used this folder for {patience_s:g} s; end it (is it stopped?)"
            )
        clock.sleep_s(TRY_AGAIN_S)
    before = 0
    if NUMBER in files.list():
        text = files.read(NUMBER, 0, 32)
        if not text.strip().isdigit():
            raise LogCorruptError(f"{place}/{NUMBER}: expected a number, got {text!r}")
        before = int(text) + 1
    files.replace(NUMBER, b"%d\n" % before)
    return before
