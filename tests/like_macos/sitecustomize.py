"""Takes from a process what macOS does not have: put this folder on PYTHONPATH, for tests alone.

Python's name of the system is another one, what only Linux has is gone from its library, from its C library
and, for pslib, from the disk. Other packages, and Python itself, choose by the system before:
they were built for Linux. ``TEST_LIKE_MACOS`` names a folder in which each such process leaves a file.
"""

import ctypes
import errno
import fcntl
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from lacks import LACKS

CHOOSE_BY_SYSTEM = (
    "asyncio ctypes.util multiprocessing.connection platform selectors shutil subprocess tempfile "
    "urllib.request uuid click datasketches matplotlib.figure matplotlib.backends.backend_agg msgpack "
    "numpy psutil pyarrow.compute pyarrow.csv pyarrow.dataset pyarrow.fs pyarrow.json pyarrow.parquet "
    "pydantic rich.console rich.live rich_click threadpoolctl yaml zmq zmq.utils.monitor"
)
OURS = tuple(
    f"{Path(__file__).resolve().parents[2] / name}{os.sep}" for name in ("pslib", "launch", "rec_models")
)
OF_LINUX = ("/proc", "/sys")
OF_GLIBC = ("gnu_get_libc_version", "mallopt", "malloc_trim", "prctl")
FULL_SYNC = 51


class CLibrary(ctypes.CDLL):
    """A library without what only glibc has."""

    def __getattr__(self, name: str) -> Any:
        if name in OF_GLIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


def missing_folders(event: str, arguments: tuple[Any, ...]) -> None:
    """Let pslib find nothing in the folders that describe Linux."""
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    path = os.fspath(arguments[0])
    if not isinstance(path, str) or not path.startswith(OF_LINUX):
        return
    frame = sys._getframe(1)
    while frame is not None and "site-packages" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith(OURS):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        frame = frame.f_back


def become_like_macos() -> None:
    """Change this process."""
    for name in CHOOSE_BY_SYSTEM.split():
        import_module(name)
    for module, names in LACKS.items():
        for name in names.split():
            vars(import_module(module)).pop(name, None)
    tempfile._O_TMPFILE_WORKS = False  # chosen when it was imported
    fcntl.F_FULLFSYNC = FULL_SYNC
    ctypes.CDLL = CLibrary
    sys.addaudithook(missing_folders)
    sys.platform = "darwin"
    if seen := os.environ.get("TEST_LIKE_MACOS"):
        Path(seen, str(os.getpid())).touch()


become_like_macos()
