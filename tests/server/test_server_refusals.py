"""A server refuses bad counts and bad maintenances in one line, and nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.server.requests import run_on_shard
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.table.policies import ByAge, ByCount, Compact, Score
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Maintain, Push, Pushed, Reserve
from tests.shard.test_maintain import ALL, NO_BLOCKS, NO_FLOATS, PLAIN, content, many, shard_of

CODEC = Codec("refusals")
SPEC = replace(
    PLAIN,
    storage="bfloat16",
    admission=ByCount(3),
    eviction=(ByAge(10),),
    score=Score(decay=0.5),
    compact=Compact("v", shows=4),
)


def answer(shard: Shard, message: Message) -> Message:
    """Return the answer of a server with this one shard, through the bytes of the wire."""
    session = ServerSession(CODEC, [shard])
    request = session.receive(b"peer", [bytes(frame) for frame in CODEC.encode(1, message)])
    if request:
        session.complete(request, 0, run_on_shard(shard, request, lambda *_: {}))
    (reply,) = session.outbox
    return CODEC.decode([bytes(frame) for frame in reply.frames]).message


def push_of(number: int, **fields: Any) -> Push:
    pair = {"keys": {"t": many(3)}, "gradients": {"t": np.ones((3, 3), np.float32)}}
    return Push(7, number, 0, 0, 0, **pair, blocks=NO_BLOCKS, dense=NO_FLOATS, **fields)


def maintain_of(**fields: Any) -> Maintain:
    plain = {"home": 0, "table": "t", "step": 30, "time_s": 0.0, "decay": True, "units": ALL}
    return Maintain(7, 9, 0, 0, **(plain | fields))


def counts(*numbers: float) -> dict[str, np.ndarray]:
    return {"t": np.array(numbers, np.float32)}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (push_of(1, shows=counts(1, 1)), "shows of t: expected one for each of its keys"),
        (push_of(1, clicks=counts(1, 1, 1, 1)), "clicks of t: expected one for each of its keys"),
        (push_of(1, shows={"u": counts(1, 1, 1)["t"]}), "shows of u: expected one for each of its keys"),
        (push_of(1, shows=counts(1, np.nan, 1)), "shows of t: expected finite numbers"),
        (push_of(1, shows=counts(1, 0, 1)), "shows of t: expected finite numbers"),
        (push_of(1, clicks=counts(1, -1, 1)), "clicks of t: expected finite numbers"),
        (push_of(1, clicks=counts(1, np.inf, 1)), "clicks of t: expected finite numbers"),
        (push_of(1, time_s=-1.0), "time_s: expected 0..1e+12, got -1"),
        (maintain_of(table="u"), "table 'u' is unknown"),
        (maintain_of(units=np.array([16], np.uint32)), "units: expected partitions in 0..15"),
        (maintain_of(units=np.full(100_000, 2**32 - 1, np.uint32)), "units: expected partitions in 0..15"),
        (maintain_of(home=17), "home unit: expected 0..16, got 17"),
        (maintain_of(time_s=1e300), "time_s: expected 0..1e+12"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused_in_one_line(message: Message, said: str) -> None:
    shard = shard_of(SPEC)
    assert isinstance(answer(shard, push_of(0, shows=counts(5, 3, 2))), Pushed)
    before = content(shard)
    refusal = answer(shard, message)
    assert isinstance(refusal, Failure)
    assert refusal.text.startswith(said)
    assert "\n" not in refusal.text
    assert content(shard) == before
    assert not shard.broken


def test_a_maintenance_that_makes_sense_is_done_however_often_it_names_a_unit() -> None:
    shard = shard_of(SPEC)
    answer(shard, push_of(0, shows=counts(5, 3, 2)))
    assert isinstance(answer(shard, maintain_of(units=np.tile(ALL, 3))), Pushed)
    assert shard.stores["t"].rows == 0
    assert shard.stores["t"].stats()["counted_keys"] == 1


def test_no_client_can_ask_for_all_the_credit_of_a_server_in_one_number() -> None:
    shard = Shard(4, 4)
    said = answer(shard, Reserve(5, 1 << 62, 0))
    assert said == Failure("configuration", f"credit: a request and its answer never have {1 << 62} bytes")
