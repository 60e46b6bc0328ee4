"""Credit: what is in flight to a server is bounded, and every waiting request gets its turn."""

from __future__ import annotations

import gc
import random
import re
import weakref
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.client.requests import RequestTable
from pslib.config import ClusterConfig, Timing
from pslib.errors import ConfigurationError
from pslib.server.requests import ShardRequest, run_on_shard
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.flow_control import SMALL_BYTES, ClientShares, CreditPool
from pslib.wire.messages import Done, Failure, Pull, Pulled, Push, Reserve
from tests.support.simulated.protocol_worlds import NO_BLOCKS, setup_of

CODEC = Codec("demo")
TIMING = Timing(retry_s=1.0, retry_max_s=4.0, request_s=60.0)
SHARE = 80_000


def pull_of(rows: int) -> Pull:
    return Pull({"t": np.arange(rows, dtype=np.uint64)}, NO_BLOCKS)


def table(share: int = SHARE) -> RequestTable:
    return RequestTable(CODEC, TIMING, first_request_id=100, share_bytes=share)


def start(requests: RequestTable, now_s: float, size: int, peer: str = "a") -> int:
    """A pull that with its answer takes about so many bytes."""
    return requests.start(now_s, peer, pull_of(10), answer_bytes=size - 250)


def sent(requests: RequestTable) -> list[tuple[int, Message]]:
    outbox, requests.outbox = requests.outbox, []
    decoded = [CODEC.decode([bytes(frame) for frame in one.frames]) for one in outbox]
    return [(envelope.request_id, envelope.message) for envelope in decoded]


def kinds(requests: RequestTable) -> list[str]:
    return [message.kind for _id, message in sent(requests)]


class TestAClient:
    def test_requests_beyond_its_share_wait_and_go_in_their_order_when_others_are_over(self) -> None:
        requests = table()
        for _ in range(4):
            start(requests, 0.0, 30_000)
        first, second = sent(requests)
        assert requests.shares.in_flight_bytes("a") <= SHARE
        requests.receive(second[0])
        (third,) = sent(requests)
        requests.receive(first[0])
        (fourth,) = sent(requests)
        assert first[0] < second[0] < third[0] < fourth[0]
        requests.receive(third[0])
        requests.receive(fourth[0])
        assert (requests.unsent_bytes, requests.shares.in_flight_bytes("a"), len(requests)) == (0, 0, 0)

    def test_each_server_has_its_own_share(self) -> None:
        requests = table()
        for peer in ("a", "b"):
            start(requests, 0.0, 60_000, peer)
        assert kinds(requests) == ["Pull", "Pull"]

    def test_a_small_request_passes_those_that_wait(self) -> None:
        requests = table()
        for size in (60_000, 60_000, 9_000):
            start(requests, 0.0, size)
        assert [message.keys["t"].size for _id, message in sent(requests)] == [10, 10]
        assert requests.unsent_bytes > 50_000

    def test_what_waits_for_credit_is_neither_sent_again_nor_forgotten_and_says_so(self) -> None:
        requests = table()
        start(requests, 0.0, 60_000)
        start(requests, 0.0, 60_000)
        sent(requests)
        flying, waiting = requests.waiting(10.0, longer_than_s=5.0)
        assert flying == ("a", "Pull", 10.0)
        said = r"Pull of [56]\d,\d{3} bytes, for credit: [56]\d,\d{3} of 80,000 are in flight"
        assert re.fullmatch(said, waiting[1])
        expired = requests.tick(60.0)
        assert len(expired) == 2
        assert requests.unsent_bytes == requests.shares.in_flight_bytes("a") == 0

    def test_a_cancelled_request_makes_room_for_the_next(self) -> None:
        requests = table()
        tickets = [start(requests, 0.0, 60_000) for _ in range(3)]
        assert kinds(requests) == ["Pull"]
        requests.cancel(tickets[1])
        assert kinds(requests) == []
        requests.cancel(tickets[0])
        assert kinds(requests) == ["Pull"]

    def test_a_request_that_never_fits_the_share_is_sent_when_the_server_grants_it(self) -> None:
        requests = table()
        ticket = start(requests, 0.0, 200_000)
        ((request, message),) = sent(requests)
        assert isinstance(message, Reserve)
        assert 199_700 < message.bytes < 200_100
        assert requests.receive(request) is None
        ((request_id, pull),) = sent(requests)
        assert (request_id, pull.kind) == (message.request_id, "Pull")
        assert requests.receive(request_id) == ticket
        assert [message for _id, message in sent(requests)] == [Reserve(request_id, 0, 0)]
        assert requests.receive(request) is None
        assert kinds(requests) == []

    def test_a_part_of_a_step_never_waits_for_another_part_which_is_answered_when_all_are_there(self) -> None:
        requests, no_keys = table(), {"t": np.empty(0, np.uint64)}
        step = {"contributors": np.arange(2, dtype=np.uint32), "units": np.zeros(12_000, np.uint32)}
        gradients, dense = {"t": np.empty((0, 1), np.float32)}, np.empty(0, np.float32)
        for _ in range(2):
            part = Push(1, 0, 0, 0, 0, no_keys, gradients, NO_BLOCKS, dense, sync=step)
            requests.start(0.0, "a", part, answer_bytes=0)
        assert kinds(requests) == ["Push", "Reserve"]

    def test_it_asks_again_for_the_same_grant_and_sends_once(self) -> None:
        requests = table()
        start(requests, 0.0, 200_000)
        requests.tick(1.0)
        (first, one), (second, two) = sent(requests)
        assert one == two
        requests.receive(second)
        assert kinds(requests) == ["Pull"]
        requests.receive(first)
        assert kinds(requests) == []

    def test_a_second_copy_of_what_is_not_small_is_sent_with_a_grant_only(self) -> None:
        requests = table()
        start(requests, 0.0, 60_000)
        ((first, _),) = sent(requests)
        requests.tick(1.0)
        ((request, message),) = sent(requests)
        assert (message.kind, message.last) == ("Reserve", first)
        requests.receive(request)
        assert [request_id for request_id, _message in sent(requests)] == [message.request_id]
        assert requests.resent == 1

    def test_what_is_over_is_not_kept_for_questions_without_an_answer(self) -> None:
        requests = table()
        pull = pull_of(10)
        keys = weakref.ref(pull.keys["t"])
        requests.start(0.0, "a", pull, answer_bytes=60_000)
        start(requests, 0.0, 200_000, peer="b")
        del pull
        ((first, _), _reserve) = sent(requests)
        requests.tick(1.0)
        requests.tick(4.0)
        assert kinds(requests) == ["Reserve"] * 4
        requests.receive(first)
        requests.give_up("b")
        gc.collect()
        assert keys() is None
        assert not requests._by_reserve

    def test_a_small_one_is_sent_again_as_ever(self) -> None:
        requests = table()
        start(requests, 0.0, SMALL_BYTES)
        requests.tick(1.0)
        assert kinds(requests) == ["Pull", "Pull"]

    def test_without_a_share_there_is_no_limit(self) -> None:
        requests = table(share=0)
        for _ in range(5):
            start(requests, 0.0, 1 << 30)
        requests.tick(1.0)
        assert kinds(requests) == ["Pull"] * 10

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.integers(1, 120_000), st.booleans()), max_size=40), st.integers(0, 2**20))
    def test_it_never_has_more_in_flight_than_its_share_and_all_get_their_turn(
        self, drawn: list[tuple[int, bool]], seed: int
    ) -> None:
        shares, choice = ClientShares(SHARE), random.Random(seed)
        flying: dict[int, int] = {}
        costs = {}
        for ticket, (cost, ends) in enumerate(drawn):
            if shares.is_beyond(cost):
                continue
            costs[ticket] = cost
            if shares.enter("a", ticket, cost):
                flying[ticket] = cost
            if ends and flying:
                over = choice.choice(list(flying))
                del flying[over]
                flying |= {freed: costs[freed] for freed in shares.leave("a", over)}
            assert shares.in_flight_bytes("a") == sum(flying.values()) <= SHARE
        done = set(costs) - set(flying)
        while flying:
            over = next(iter(flying))
            del flying[over]
            freed = shares.leave("a", over)
            done -= set(freed)
            flying |= {one: costs[one] for one in freed}
        assert not shares.waiting.get("a")


class TestAPool:
    def test_it_grants_in_order_what_fits_and_answers_the_last_question(self) -> None:
        pool = CreditPool(100)
        assert pool.reserve((b"a", 1), 11, 60) == [((b"a", 1), 11)]
        assert pool.reserve((b"b", 2), 12, 60) == []
        assert pool.reserve((b"c", 3), 13, 10) == []
        assert pool.reserve((b"b", 2), 14, 60) == []
        assert pool.give_back((b"a", 1)) == [((b"b", 2), 14), ((b"c", 3), 13)]
        assert pool.granted_bytes == 70

    def test_asked_again_it_grants_the_same_bytes_once(self) -> None:
        pool = CreditPool(100)
        assert pool.reserve((b"a", 1), 11, 60) == pool.reserve((b"a", 1), 11, 60)
        assert pool.granted_bytes == 60

    def test_one_that_is_larger_than_the_pool_goes_alone(self) -> None:
        pool = CreditPool(100)
        assert pool.reserve((b"a", 1), 11, 500)
        assert not pool.reserve((b"b", 2), 12, 1)
        assert pool.give_back((b"a", 1)) == [((b"b", 2), 12)]

    def test_a_client_that_vanishes_gives_its_credit_back_and_its_wishes_are_forgotten(self) -> None:
        pool = CreditPool(100, hold_s=60.0)
        pool.tick(1000.0)
        pool.reserve((b"gone", 1), 11, 100)
        pool.reserve((b"gone too", 1), 12, 100)
        pool.tick(1050.0)
        assert pool.reserve((b"here", 1), 13, 100) == []
        assert pool.tick(1060.0) == []
        assert pool.tick(1060.1) == [((b"here", 1), 13)]

    def test_giving_back_what_was_never_granted_changes_nothing(self) -> None:
        pool = CreditPool(100)
        assert pool.give_back((b"a", 1)) == []
        assert pool.granted_bytes == 0

    def test_without_a_limit_everything_is_granted(self) -> None:
        pool = CreditPool()
        assert all(pool.reserve((b"a", number), number, 1 << 40) for number in range(10))


class OneServer:
    """A server whose clients' messages arrive, in order, when the test says; and how many bytes it holds."""

    def __init__(self, credit_bytes: int, clients: int) -> None:
        config = ClusterConfig(trainers=clients, credit_bytes=credit_bytes)
        shard = Shard(4, 4)
        shard.own(np.arange(20))
        shard.setup(setup_of(t=16))
        self.shard = shard
        self.session = ServerSession(CODEC, [shard], CreditPool(config.grant_bytes))
        self.tables = [
            RequestTable(CODEC, TIMING, 1 + (index << 40), config.client_share_bytes)
            for index in range(clients)
        ]
        self.wire: list[deque[list[bytes]]] = [deque() for _ in range(clients)]
        self.requests: deque[ShardRequest] = deque()
        self.answered = 0

    def flush(self) -> None:
        for client, requests in enumerate(self.tables):
            outbox, requests.outbox = requests.outbox, []
            self.wire[client] += [[bytes(frame) for frame in one.frames] for one in outbox]

    def arrive(self, client: int) -> None:
        """The next message of a client comes to the server."""
        if self.wire[client]:
            request = self.session.receive(client.to_bytes(1, "big"), self.wire[client].popleft())
            if request:
                self.requests.append(request)
            self.reply()

    def work(self) -> None:
        if self.requests:
            request = self.requests.popleft()
            self.session.complete(request, 0, run_on_shard(self.shard, request, lambda *_: {}))
            self.reply()

    def reply(self) -> None:
        replies, self.session.outbox = self.session.outbox, []
        for reply in replies:
            envelope = CODEC.decode([bytes(frame) for frame in reply.frames])
            assert not isinstance(envelope.message, Failure), envelope.message
            requests = self.tables[reply.peer[0]]
            self.answered += requests.receive(envelope.request_id) is not None
            assert isinstance(envelope.message, Done | Pulled)
        self.flush()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all requests on the wire or at the server, with their answers."""
        flying = [sum(map(len, frames)) for wire in self.wire for frames in wire]
        keys = [request.key_count for request in self.requests]
        on_wire = [CODEC.decode(frames).message for wire in self.wire for frames in wire]
        keys += [one.keys["t"].size for one in on_wire if isinstance(one, Pull)]
        return sum(flying) + sum(count * 72 for count in keys)


@pytest.mark.parametrize("seed", range(8))
def test_many_clients_never_push_a_server_past_its_pool(seed: int) -> None:
    choice = random.Random(seed)
    credit, clients = 2 << 20, choice.choice([2, 8, 30])
    server, wanted, most = OneServer(credit, clients), 0, 0
    for step in range(1500):
        client = choice.randrange(clients)
        if step < 600 and choice.random() < 0.6:
            rows = choice.choice([1, 50, 1000, 5000, 12_000])
            server.tables[client].start(0.0, "server", pull_of(rows), answer_bytes=64 * rows)
            wanted += 1
            server.flush()
        choice.choice([server.work, lambda one=client: server.arrive(one)])()
        most = max(most, server.held_bytes)
    while server.requests or any(server.wire):
        server.work()
        for client in range(clients):
            server.arrive(client)
        most = max(most, server.held_bytes)
    assert server.answered == wanted > 100
    assert credit // 4 < most <= credit + clients * 2048  # the words of Reserve are not counted
    assert server.session.credit.granted_bytes == 0


def test_a_server_that_was_stopped_for_long_finds_no_second_copies() -> None:
    server = OneServer(8 << 20, clients=3)
    for requests in server.tables:
        for _ in range(4):
            requests.start(0.0, "server", pull_of(12_000), answer_bytes=64 * 12_000)
    for now_s in range(40):
        for requests in server.tables:
            requests.tick(float(now_s))
        server.flush()
    kinds = [CODEC.decode(frames).message for wire in server.wire for frames in wire]
    copies = [one for one in kinds if isinstance(one, Pull)]
    assert len(copies) <= 12
    assert server.held_bytes <= (8 << 20) + 200_000
    while server.requests or any(server.wire):
        for client in range(3):
            server.arrive(client)
        server.work()
    assert server.answered == 12


def test_the_pool_is_in_the_clusters_settings() -> None:
    config = ClusterConfig(trainers=4, credit_bytes=1 << 20)
    assert (config.client_share_bytes, config.grant_bytes) == (1 << 17, 1 << 19)
    assert ClusterConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigurationError, match="credit_bytes: expected a whole number in 1048576"):
        ClusterConfig(credit_bytes=1000)
