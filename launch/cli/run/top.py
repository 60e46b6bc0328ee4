"""``pslib top``: a run on one screen, which is drawn again each second."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from launch.cli.command import FOLDER, argument, command, json_option, key_option, option, show
from pslib.clock import SystemClock
from pslib.errors import EXIT_DONE

if TYPE_CHECKING:
    from rich.console import Console

    from pslib.monitor.sources import EndedRun, LiveRun

REFRESH_S = 1.0
"""Interval of screens; processes send heartbeats as often."""

RATES_S = 3.0
"""Wait for a second state, which is the first with rates."""

LEAVE = (b"q", b"Q", b"\x03", b"")
"""Keys by which one leaves: q, Ctrl-C, the end of the input."""


@command(
    "top",
    """
pslib top runs/clicks
pslib top tcp://10.0.0.1:7000 --cluster-id 5f3a91c0
pslib top runs/clicks --json
""",
)
@argument("run", "RUN", "a run's folder, or the coordinator's tcp://host:port", FOLDER)
@option("--cluster-id", "ID", "of the cluster at an address")
@key_option("a key of the cluster; a reader's will do")
@json_option
def top_command(run: str, cluster_id: str | None, key_file: str | None, as_json: bool) -> int:
    """Show a run on one screen: its progress, its processes, where their time goes, rates and events.

    q or Ctrl-C leaves. A run that has ended, and a pipe in place of a terminal, get one screen.
    """
    from pslib.monitor.sources import open_run

    source = open_run(run, cluster_id, key_file)
    try:
        with suppress(KeyboardInterrupt):
            _show(source, as_json)
    finally:
        source.close()
    return EXIT_DONE


def _show(source: LiveRun | EndedRun, as_json: bool) -> None:
    from rich.console import Console

    from pslib.monitor.terminal import screen
    from pslib.recorder.display import is_terminal

    goes_on = source.state()["run"]["state"] == "running"
    if goes_on and not as_json and is_terminal(sys.stdout):
        with keys() as pressed:
            follow(source, Console(), pressed)
        return
    if goes_on:
        source.changed(source.changed(0, 0.0), RATES_S)
    if as_json:
        show(source.state(), (), as_json=True)
    else:
        console = Console(highlight=False)
        console.print(screen(source.state(), source.samples(), console.width, None))


def follow(source: LiveRun | EndedRun, console: Console, pressed: Callable[[float], bytes | None]) -> None:
    """Draw the newest state until a key is pressed by which one leaves.

    Parameters
    ----------
    source : LiveRun or EndedRun
    console : Console
    pressed : callable
        Waits for a key, at most so many seconds; returns it, or None.
    """
    from rich.live import Live

    from pslib.monitor.terminal import screen

    with Live(console=console, screen=True, auto_refresh=False) as live:
        key = None
        while key not in LEAVE:
            source.changed(sys.maxsize, 0.0)  # an ended run reads its files only when it is asked
            live.update(screen(source.state(), source.samples(), *console.size), refresh=True)
            key = pressed(REFRESH_S)


@contextmanager
def keys() -> Iterator[Callable[[float], bytes | None]]:
    """Read single keys from standard input, without an echo; where it is no terminal only time passes."""
    import termios
    import tty

    number = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if number is None else termios.tcgetattr(number)

    def pressed(limit_s: float) -> bytes | None:
        if number is None:
            SystemClock().sleep_s(limit_s)
            return None
        return os.read(number, 1) if select.select([number], [], [], limit_s)[0] else None

    try:
        if number is not None:
            tty.setcbreak(number)
        yield pressed
    finally:
        if number is not None and before is not None:
            termios.tcsetattr(number, termios.TCSADRAIN, before)
