"""Folder lock: one owner at a time until its process ends, with a generation number that rises."""

from __future__ import annotations

from pslib.clock import AwakeClock, Clock
from pslib.errors import LogCorruptError, UnavailableError
from pslib.update_log.files import LogFiles, in_words

__all__ = ["claim"]

LOCK, NUMBER = "lock", "generation"
TRY_AGAIN_S = 0.05


def claim(files: LogFiles, clock: Clock, patience_s: float, place: str) -> int:
    """Lock a folder until this process ends; return the number of earlier owners.

    Waits for a predecessor that still holds the lock: a killed process releases it within milliseconds, a
    stopped one holds it until it is ended. The number is durable before this returns.

    Parameters
    ----------
    files : LogFiles
        The folder; closed on failure.
    clock : Clock
        Clock of the machine.
    patience_s : float
        Longest wait for the predecessor, excluding time in which this process was stopped.
    place : str
        Its name, for messages.

    Raises
    ------
    UnavailableError
        If another process still owns it after ``patience_s``.
    LogCorruptError
        If the number can't be read.
    LogFullError
        If there is no disk space for the next number.
    """
    try:
        with in_words(place):
            return _claimed(files, AwakeClock(clock), patience_s, place)
    except BaseException:
        files.close()  # else the lock would be held as long as this process lives
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
