"""Runs from Python inside a job of Ray: ``from pslib.ray import launch``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from pslib.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    ConfigurationError,
    PreemptedError,
    PslibError,
    UnavailableError,
)

_ERRORS = {one.exit_code: one for one in (ConfigurationError, UnavailableError, PreemptedError)}


def launch(path: str | Path, *arguments: str, **options: Any) -> None:
    """Train a job file, or run a script in every trainer, on the cluster of this job of Ray.

    It is ``pslib train JOB --on ray`` or ``pslib launch --on ray SCRIPT``, and prints the same lines. If the
    process is not connected to Ray, it connects for the run.

    Parameters
    ----------
    path : str or Path
        Job file, ``.yaml``, or Python file that calls ``pslib.connect()``.
    *arguments : str
        The script's own arguments.
    **options
        Options of the command, with ``_`` in place of ``-``: ``servers=4, durability="log"``. True is an
        option without a value, a list one that is repeated: ``set=["training.epochs=2"]``.

    Raises
    ------
    ConfigurationError, UnavailableError, PreemptedError, PslibError
        When the run fails, by its exit code; it has printed the cause.
    KeyboardInterrupt
        When it was ended by Ctrl-C.

    Examples
    --------
    >>> from pslib.ray import launch
    >>> launch("train.py", "clicks/", servers=4, trainers=8, out="runs/clicks")  # doctest: +SKIP
    """
    words = ["train" if Path(path).suffix in (".yaml", ".yml") else "launch", "--on", "ray"]
    for name, given in options.items():
        values = given if isinstance(given, list | tuple) else [given]
        for value in values:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    # a layer above this package
    code: int = import_module("launch.cli.main").main([*words, str(path), *arguments])
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code != EXIT_DONE:
        raise _ERRORS.get(code, PslibError)(f"{path}: its run on Ray ended with exit code {code}; see above")
