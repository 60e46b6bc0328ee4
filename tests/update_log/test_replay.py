"""A shard that replays its log is the shard that wrote it: every bit of every unit, marks, owners, counts."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.errors import ConfigurationError, LogFullError, UnavailableError
from pslib.shard.serving import finish
from pslib.shard.shard import Shard
from pslib.table.initializers import Normal
from pslib.table.optimizers import FTRL, SGD, Adagrad, Adam, Momentum, Optimizer, RowwiseAdagrad
from pslib.table.partition_map import units_of_mask
from pslib.table.policies import ByAge, ByBloom, ByChance, ByCount, ByNorm, ByScore, Compact, Score
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.update_log import RollingLog
from pslib.update_log.shard_log import ShardLog, recover
from pslib.wire.applied_pushes import FencedError
from pslib.wire.fields import Message
from pslib.wire.messages import Adopt, Erase, Image, Maintain, Push, Release, Setup
from tests.support.simulated.files import SimulatedDisk
from tests.support.simulated.protocol_worlds import BITS, NO_BLOCKS, NO_FLOATS, key_in

BLOCKS = 3
PARTITIONS = 1 << BITS
UNITS = PARTITIONS + BLOCKS
KEYS = np.array([key_in(number % PARTITIONS, number) for number in range(60)], np.uint64)
DENSE = np.linspace(-1, 1, 5, dtype=np.float32)
ABOUT = {"shard": 0}


def table(optimizer: Optimizer = SGD(0.5), **policies: Any) -> TableSpec:  # noqa: B008  a frozen value
    return TableSpec("t", (PartSpec("v", 3, optimizer, Normal(0.1)),), **policies)


TABLES = {
    **{
        type(one).__name__: table(one) for one in (SGD(0.5), Momentum(0.1), Adagrad(0.1), RowwiseAdagrad(0.1))
    },
    **{type(one).__name__: table(one) for one in (Adam(0.1, weight_decay=0.1), FTRL(0.1))},
    **{storage: table(Adagrad(0.1), storage=storage) for storage in ("bfloat16", "float16", "int8")},
    "counted": table(admission=ByCount(3), eviction=(ByAge(5),)),
    "filtered": table(admission=ByBloom(2, 64), eviction=(ByNorm(0.05),)),
    "probable": table(admission=ByChance(0.5)),
    "compact": replace(
        table(score=Score(0.1, 1.0, decay=0.8), eviction=(ByScore(0.05),)),
        parts=(PartSpec("w", 1, SGD(0.5)), PartSpec("v", 2, Adagrad(0.1))),
        compact=Compact("v", score=0.5),
    ),
    "scored": table(score=Score(0.1, 1.0, decay=0.8), eviction=(ByScore(0.2),)),
}


def setup_of(spec: TableSpec) -> Setup:
    return Setup({"tables": [spec.to_dict()]}, DENSE.size, Adam(0.1).to_dict(), DENSE)


def fingerprint(shard: Shard) -> dict[str, Any]:
    """All that a shard is."""
    moves = shard.moves
    found: dict[str, Any] = {
        "owned": units_of_mask(shard.owned).tolist(),
        "kinds": shard.kind_of_partition.tobytes(),
        "streams": sorted(shard.marks.floors()),
        "done": shard.marks.done_below,
        "counters": asdict(shard.counters),
        "tables": shard.tables,
        "moved": moves.moved,
        "hints": moves.hints,
        "released": {unit: image_bytes(image) for unit, image in moves.released.items()},
        "declined": {unit: (version, str(why)) for unit, (version, why) in moves.declined.items()},
        "published": moves.published,
    }
    for unit in units_of_mask(shard.owned).tolist():
        marks = shard.marks.export(unit)
        found[f"marks {unit}"] = sorted(stream for stream in marks["streams"] if stream[3])
    for name, store in shard.stores.items():
        for partition in range(PARTITIONS):
            for narrow in (False, True) if shard.tables[name].compact else (False,):
                found[f"{name} {partition} {narrow}"] = rows_of(*store.export_partition(partition, narrow))
            if isinstance(shard.tables[name].admission, ByCount):
                found[f"{name} {partition} counts"] = [one.tolist() for one in store.export_counts(partition)]
            if isinstance(shard.tables[name].admission, ByBloom):
                found[f"{name} {partition} filter"] = store.export_filter(partition).tobytes()
    if shard.dense:
        found["dense"] = {
            block: (shard.dense.weights[block].tobytes(), shard.dense.state[block].tobytes(), version)
            for block, version in shard.dense.versions.items()
        }
    return found


def rows_of(keys: np.ndarray, weights: np.ndarray, state: np.ndarray) -> list[tuple[int, bytes, bytes]]:
    """Rows by key: where a row lies in memory says nothing."""
    rows = [(key, weights[row].tobytes(), state[row].tobytes()) for row, key in enumerate(keys.tolist())]
    return sorted(rows)


def image_bytes(image: Image) -> Any:
    order = {name: np.argsort(keys) for name, keys in image.keys.items()}
    content = {}
    for name, array in image.content.items():
        of = next((order[keys] for keys in order if name in (f"{keys}.weights", f"{keys}.state")), None)
        content[name] = (array if of is None else array[of]).tobytes()
    keys = {name: np.sort(found).tobytes() for name, found in image.keys.items()}
    return image.map_version, keys, content, [stream for stream in image.marks["streams"] if stream[3]]


class Run:
    """One shard with a log, driven by drawn requests."""

    def __init__(self, spec: TableSpec, seed: int, log_bytes: int, memory_bytes: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.spec = spec
        self.disk = SimulatedDisk(seed)
        self.shard = self.blank(memory_bytes)
        self.log = ShardLog(self.open(), self.shard, log_bytes)
        self.shard.own(np.arange(UNITS))
        self.shard.setup(setup_of(spec))
        self.numbers = dict.fromkeys(range(4), 0)
        self.version = 1
        self.sent: list[Message] = []
        self.images: dict[int, Image] = {}
        self.steps = 0

    @staticmethod
    def setup(spec: TableSpec, dense: DenseSpec | None = None) -> Setup:
        if dense is None:
            return setup_of(spec)
        values = np.zeros(dense.length, np.float32)
        return Setup({"tables": [spec.to_dict()]}, dense.length, dense.optimizer.to_dict(), values)

    @staticmethod
    def blank(memory_bytes: int = 0) -> Shard:
        return Shard(BITS, BLOCKS, memory_bytes=memory_bytes, slice_rows=16)

    def open(self) -> RollingLog:
        return RollingLog(self.disk.files("log"), ABOUT, segment_bytes=4096)

    def recovered(self) -> Shard:
        shard = self.blank(self.shard.room.limit_bytes)
        recover(self.open(), shard, lambda *_: None)
        return shard

    def check(self) -> None:
        self.log.flush()
        found, expected = fingerprint(self.recovered()), fingerprint(self.shard)
        different = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
        assert not different, {name: (found.get(name), expected.get(name)) for name in different[:3]}

    # --- what may happen ---

    def content(self) -> dict[str, Any]:
        keys = self.random.choice(KEYS, self.random.integers(0, 30), replace=False)
        blocks = np.flatnonzero(self.random.random(BLOCKS) < 0.5).astype(np.uint32)
        assert self.shard.dense or not blocks.size
        sizes = [2, 2, 1]
        return {
            "keys": {"t": keys},
            "gradients": {"t": self.random.normal(size=(keys.size, 3)).astype(np.float32)},
            "blocks": blocks,
            "dense": self.random.normal(size=sum(sizes[block] for block in blocks)).astype(np.float32),
            "shows": {"t": np.ones(keys.size, np.float32)},
            "clicks": {"t": (self.random.random(keys.size) < 0.3).astype(np.float32)},
        }

    def name(self) -> dict[str, int]:
        stream = int(self.random.integers(0, 4)) + self.shard.marks.done_below
        number = self.numbers.get(stream, 0)
        self.numbers[stream] = number + 1
        floor = int(self.random.integers(0, number + 1))
        home = int(self.random.integers(0, PARTITIONS))
        return {
            "stream": stream,
            "number": number,
            "epoch": number // 4,
            "all_acked_below": floor,
            "home": home,
        }

    def push(self) -> None:
        self.steps += 1
        message = Push(**self.name(), **self.content(), step=self.steps, time_s=1.0, rate=0.5)
        self.sent.append(message)
        self.give(message)

    def again(self) -> None:
        if self.sent:
            self.give(self.sent[self.random.integers(0, len(self.sent))])

    def give(self, message: Message) -> None:
        try:
            if isinstance(message, Push):
                self.shard.push(message)
            elif isinstance(message, Erase):
                finish(self.shard.erase_steps(message))
            else:
                assert isinstance(message, Maintain)
                self.shard.maintain(message)
        except (FencedError, UnavailableError):
            pass

    def erase(self) -> None:
        self.sent.append(Erase(**self.name(), keys={"t": self.random.choice(KEYS, 5, replace=False)}))
        self.give(self.sent[-1])

    def maintain(self) -> None:
        units = np.arange(PARTITIONS, dtype=np.uint32)
        self.sent.append(
            Maintain(**self.name(), table="t", step=self.steps, time_s=1.0, decay=True, units=units)
        )
        self.give(self.sent[-1])

    def sync_step(self) -> None:
        self.steps += 1
        contributors = np.arange(2, dtype=np.uint32)
        owned = units_of_mask(self.shard.owned).astype(np.uint32)
        for rank in range(2):
            name = self.name() | {
                "stream": 100 + rank,
                "number": self.steps,
                "epoch": 0,
                "all_acked_below": 0,
            }
            content = self.content()
            mine = np.isin(np.arange(UNITS), owned)
            if not mine.all():
                content |= {"keys": {}, "gradients": {}, "shows": {}, "clicks": {}}
                content |= {"blocks": NO_BLOCKS, "dense": NO_FLOATS}
            message = Push(
                **name,
                **content,
                step=self.steps,
                rank=rank,
                maintain=bool(self.steps % 2),
                sync={"contributors": contributors, "units": owned},
            )
            finish(self.shard.sync.push_steps(message, rank))
        for _waiter, outcome in self.shard.sync.take_over():
            assert outcome == {}

    def release(self) -> None:
        owned = units_of_mask(self.shard.owned)
        if owned.size:
            unit = int(self.random.choice(owned))
            self.version += 1
            self.images[unit] = self.shard.release(Release(unit, 1, self.version))

    def adopt(self) -> None:
        if self.images:
            unit = int(self.random.choice(list(self.images)))
            image = self.images.pop(unit)
            self.version += 1
            self.shard.adopt(Adopt(unit, self.version, image.marks, image.content, image.keys))

    def forget(self) -> None:
        self.shard.moves.forget_images(self.version)

    def finish_streams(self) -> None:
        self.shard.finish_streams(self.shard.marks.done_below + 1)

    def write_images(self) -> None:
        self.log.write_images()

    def pace(self) -> None:
        self.log.pace()


STEPS = ["push"] * 8 + ["again", "again", "erase", "maintain", "sync_step", "release", "adopt", "forget"]
STEPS += ["finish_streams", "write_images", "pace", "pace"]


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.lists(st.sampled_from(STEPS), max_size=40))
def test_a_replay_gives_the_same_bits(name: str, seed: int, steps: list[str]) -> None:
    run = Run(TABLES[name], seed, log_bytes=1 << 40)
    for step in steps:
        getattr(run, step)()
    run.check()


@pytest.mark.parametrize("name", ["Adam", "counted", "int8"])
def test_a_short_log_is_replayed_too_and_stays_short(name: str) -> None:
    run = Run(TABLES[name], 1, log_bytes=60_000)
    longest = 0
    for turn in range(400):
        getattr(run, STEPS[int(run.random.integers(0, len(STEPS)))].replace("write_images", "push"))()
        while run.log.owes:
            run.log.pace()
        longest = max(longest, run.log.log.size_bytes)
        if turn % 40 == 0:
            run.check()
    run.check()
    assert run.log.log.below > 1
    assert longest <= 60_000


def test_rows_that_the_memory_limit_lets_go_are_gone_after_a_replay() -> None:
    spec = table(Adagrad(0.1), when_full="oldest", eviction=(ByAge(1e6),))
    run = Run(spec, 3, log_bytes=1 << 40, memory_bytes=4 << 20)
    random = np.random.default_rng(3)
    for number in range(60):
        keys = np.unique(random.integers(0, 1 << 63, 4000, dtype=np.uint64))
        rows = np.ones((keys.size, 3), np.float32)
        run.give(Push(50, number, 0, 0, 0, {"t": keys}, {"t": rows}, NO_BLOCKS, NO_FLOATS, step=number))
    assert run.shard.stores["t"].stats()["evicted_share"] > 0
    run.check()


def test_most_rows_of_a_table_that_have_left_leave_other_tables_as_they_were() -> None:
    """Their Bloom filters counted twice after it, so that keys earned rows too early."""
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40)
    other = replace(TABLES["filtered"], name="other")
    run.shard.setup(Setup({"tables": [other.to_dict()]}, 0, {}, np.empty(0, np.float32)))
    ones = np.ones((KEYS.size, 3), np.float32)
    for number, name in enumerate(("other", "t")):
        run.give(Push(50, number, 0, 0, 0, {name: KEYS}, {name: ones}, NO_BLOCKS, NO_FLOATS))
    run.shard.stores["t"].erase(KEYS[1:])
    run.log.append({"note": "left", "table": "t", "keys": KEYS[1:].tobytes()})
    run.check()


def test_a_full_log_refuses_a_push_and_nothing_has_changed() -> None:
    run = Run(TABLES["Adam"], 5, log_bytes=1 << 40)
    for _ in range(5):
        run.push()
    for step in ("push", "erase", "maintain", "sync_step"):
        run.disk.space = run.disk.used
        before = fingerprint(run.shard)
        if step == "sync_step":
            with pytest.raises(AssertionError):  # every waiter hears of it
                run.sync_step()
        else:
            getattr(run, step)()
        after = fingerprint(run.shard)
        about_rows = [name for name in before if "marks" not in name and name != "streams"]
        assert [after[name] for name in about_rows] == [before[name] for name in about_rows]
        run.disk.space = None
        if step != "sync_step":
            run.give(run.sent[-1])
    run.disk.space = run.disk.used
    with pytest.raises(LogFullError):
        run.shard.release(Release(3, 1, 9))
    assert run.shard.owned >> 3 & 1
    run.disk.space = None
    run.check()


NEVER_SEEN = {"t.counts": np.zeros((1, 1), np.uint32)}
FILTERED = {"t.filter": np.ones((1, 1), np.uint8)}


@pytest.mark.parametrize(
    ("name", "marks", "content", "said"),
    [
        ("Adam", {}, {}, r"marks: expected a number done_below and streams .*, got \{\}"),
        ("Adam", {"done_below": 0}, {}, "marks: "),
        ("Adam", {"done_below": True, "streams": []}, {}, "marks: "),
        ("Adam", {"done_below": -1, "streams": []}, {}, "marks: "),
        ("Adam", {"done_below": 0, "streams": [None]}, {}, "marks: .* got None"),
        ("Adam", {"done_below": 0, "streams": [[7, 0, 0]]}, {}, "marks: "),
        ("Adam", {"done_below": 0, "streams": [["a", 0, 0, [1]]]}, {}, r"marks: .* got \['a', 0, 0, \[1\]\]"),
        ("Adam", {"done_below": 0, "streams": [[7, 0, 0, ["b"]]]}, {}, "marks: "),
        ("Adam", None, FILTERED, r"expected t.filter as uint8 \(1, 0\)"),
        ("counted", None, NEVER_SEEN, r"expected t.counts in 1\.\.65535, got 0\.\.0"),
    ],
)
def test_an_image_that_makes_no_sense_is_refused_before_it_is_in_the_log(
    name: str, marks: Any, content: dict[str, Any], said: str
) -> None:
    """Else the unit has two owners, and no process can read that log again."""
    run = Run(TABLES[name], 7, log_bytes=1 << 40)
    for _ in range(3):
        run.push()
    image = run.shard.release(Release(3, 1, 2))
    keys = dict(image.keys)
    if "t.counted" in keys:
        keys["t.counted"] = np.array([key_in(3, 99)], np.uint64)
    before = fingerprint(run.shard)
    adopt = Adopt(3, 5, image.marks if marks is None else marks, {**image.content, **content}, keys)
    with pytest.raises(ConfigurationError, match=said):
        run.shard.adopt(adopt)
    after = fingerprint(run.shard)
    assert [key for key in before if before[key] != after[key]] == ["declined"]
    run.check()


def test_a_unit_that_a_full_log_can_not_release_still_gets_its_image_in_this_round() -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40)
    for _ in range(30):
        run.push()
    run.log.write_images()
    run.log._begin()
    run.disk.space = run.disk.used + 10
    with pytest.raises(LogFullError):
        run.shard.release(Release(5, 1, 5))
    run.disk.space = None
    while run.log.owes:
        run.log.pace()
    assert run.log.rounds == 1
    assert run.shard.stores["t"].partition_rows(5)
    run.check()


def test_what_came_with_a_unit_is_known_of_streams_though_a_newer_image_of_it_follows() -> None:
    """Else a successor's push of a batch that was applied counts once more, if no push came
    meanwhile."""
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40)
    for _ in range(3):
        run.push()
    image = run.shard.release(Release(3, 1, 2))
    marks = {"done_below": 0, "streams": [*image.marks["streams"], [77, 2, 10, []]]}
    run.shard.adopt(Adopt(3, 3, marks, image.content, image.keys))
    run.log.write_images()
    run.log._begin()
    run.log._write_batch([3])
    run.check()


def test_images_that_were_asked_for_are_written_once_a_full_log_has_room() -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40)
    run.push()
    run.log.write_images()
    run.disk.space = run.disk.used + 10
    run.log.pace()
    assert not run.log.owes  # else the thread would try again without a pause
    run.disk.space = None
    before = run.log.log.last
    run.push()
    while run.log.owes:
        run.log.pace()
    assert run.log.rounds == 1
    assert run.log.log.below > before
    run.push()
    assert not run.log.owes  # it was asked for once
    run.check()


def test_a_memory_shard_writes_nothing() -> None:
    shard = Run.blank()
    shard.own(np.arange(UNITS))
    shard.setup(setup_of(TABLES["SGD"]))
    assert shard.journal is None
    assert shard.room.tell is None
