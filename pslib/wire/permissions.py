"""Permissions: a pure table of message kinds and the roles that may send them.

A cluster with keys knows the role of every connection from the key that it was opened with (see
`pslib.transport.curve`). Both sessions refuse, in one line and before any other check, what the role may not
send. A network without keys has no roles, and everything is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pslib.wire.messages import (
    Adopt,
    BeginSave,
    CheckLoad,
    Clock,
    CutReady,
    CutStep,
    DescribeTables,
    EndLease,
    EndSave,
    Erase,
    Failure,
    Heartbeat,
    JobResult,
    Keep,
    Leave,
    Load,
    Maintain,
    Message,
    Missing,
    NextHand,
    NextLease,
    OpenJob,
    Pull,
    Push,
    Register,
    Release,
    Reserve,
    Save,
    SaveFiles,
    SaveSoon,
    Scale,
    Setup,
    Stats,
    Status,
    Stop,
    TrimLog,
    Witness,
)

__all__ = ["ALLOWED", "ROLES", "refusal"]

ROLES = ("server", "trainer", "reader", "admin")
"""Roles; the coordinator uses a server's key too."""

_EVERYBODY = frozenset(ROLES)
_TRAINING = frozenset({"trainer", "admin"})
_MEMBERS = frozenset({"server", "trainer", "admin"})
_ADMIN = frozenset({"server", "admin"})

ALLOWED: Mapping[type[Message], frozenset[str]] = MappingProxyType(
    {
        Pull: _EVERYBODY,
        Reserve: _EVERYBODY,
        Stats: _EVERYBODY,
        Status: _EVERYBODY,
        JobResult: _EVERYBODY,
        Setup: _MEMBERS,
        Push: _TRAINING,
        Erase: _TRAINING,
        TrimLog: _TRAINING,
        Maintain: _TRAINING,
        Save: _TRAINING,
        BeginSave: _TRAINING,
        SaveFiles: _TRAINING,
        EndSave: _TRAINING,
        CheckLoad: _TRAINING,
        DescribeTables: _TRAINING,
        Load: _TRAINING,
        Witness: _TRAINING,
        Missing: _TRAINING,
        OpenJob: _TRAINING,
        NextLease: _TRAINING,
        EndLease: _TRAINING,
        Clock: _TRAINING,
        CutReady: _TRAINING,
        CutStep: _TRAINING,
        Register: _MEMBERS,
        Heartbeat: _MEMBERS,
        Leave: _MEMBERS,
        Release: _ADMIN,
        Adopt: _ADMIN,
        Keep: _ADMIN,
        NextHand: _ADMIN,
        Scale: _ADMIN,
        Stop: _ADMIN,
        SaveSoon: _TRAINING,
    }
)
"""Roles that may send a request; missing kinds are replies, or never requests.

A role that may `Pull` may also list tables: `DescribeTables` without a path.
"""


def refusal(role: str | None, message: Message) -> Failure | None:
    """Return the refusal of a request for a connection's role; None when it is allowed.

    Parameters
    ----------
    role : str or None
        One of `ROLES`; None where the network has no keys.
    message : Message
        The request.
    """
    if role is None:
        return None
    allowed = ALLOWED.get(type(message), frozenset())
    if isinstance(message, DescribeTables) and not message.path:  # tables of the server, and no file
        allowed = ALLOWED[Pull]
    if role not in allowed:
        who = " or ".join(one for one in ROLES if one in allowed) or "nobody"
        return Failure("forbidden", f"{message.kind} is for {who}; this key is a {role}'s, give another")
    if isinstance(message, Register | Heartbeat | Leave) and role not in (message.role, "admin"):
        return Failure("forbidden", f"a {role}'s key can't be a {message.role!r:.80} of the cluster")
    return None
