"""Permissions: the refusal of a message that the role of its sender may not send.

A cluster with keys knows the role of every connection from the key that it was opened with (see
`pslib.transport.curve`). Each message class names its ``senders``. Both sessions refuse all others, in one
line and before any other check. A network without keys has no roles, and everything is allowed.
"""

from __future__ import annotations

from pslib.wire.fields import ROLES, Message
from pslib.wire.messages import DescribeTables, Failure, Heartbeat, Leave, Pull, Register


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
    allowed = message.senders
    if isinstance(message, DescribeTables) and not message.path:  # tables of the server, and no file
        allowed = Pull.senders
    if role not in allowed:
        who = " or ".join(one for one in ROLES if one in allowed) or "nobody"
        return Failure("forbidden", f"{message.kind} is for {who}; this key is a {role}'s, give another")
    if isinstance(message, Register | Heartbeat | Leave) and role not in (message.role, "admin"):
        return Failure("forbidden", f"a {role}'s key can't be a {message.role!r:.80} of the cluster")
    return None
