"""Keys of a run.

A process gets its key in the first line of its standard input, never in an argument, in the environment or in
a file of the machine that it runs on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from pslib.transport import Keys


def keys_of_run(
    folder: str | None, open_addresses: Sequence[str], insecure: bool
) -> Mapping[str, Keys] | None:
    """Return the keys of a run by role; None means no encryption.

    Parameters
    ----------
    folder : str or None
        Folder of keys, made by ``pslib keys make``.
    open_addresses : sequence of str
        Addresses of coordinator and servers that other machines reach. If there are any, keys are made for
        the run only.
    insecure : bool
        True to run without encryption on such addresses.

    Raises
    ------
    ConfigurationError
        When encryption is both requested and forbidden, or the folder has no keys.
    """
    if folder is not None and insecure:
        raise ConfigurationError("--keys encrypts and --insecure-network does not: leave one of them out")
    if folder is None and (insecure or not open_addresses):
        return None
    from pslib.transport.keys import make_keys, read_folder

    return make_keys() if folder is None else read_folder(folder)
