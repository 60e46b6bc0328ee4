"""Policies of a table are values that check themselves, alone and with each other."""

from dataclasses import replace

import numpy as np
import pytest

from pslib.errors import ConfigurationError
from pslib.settings import read_named
from pslib.shard.stores import make_store
from pslib.table.optimizers import Adagrad
from pslib.table.policies import (
    ADMISSIONS,
    EVICTIONS,
    ByAge,
    ByBloom,
    ByChance,
    ByCount,
    ByNorm,
    ByScore,
    Compact,
    Score,
)
from pslib.table.tables import PartSpec, RowLayout, TableSpec

PLAIN = TableSpec("t", (PartSpec("w", 1), PartSpec("v", 4)), seed=3)
FULL = replace(
    PLAIN,
    storage="bfloat16",
    admission=ByCount(3),
    eviction=(ByAge(500), ByNorm(1e-3), ByScore(0.4)),
    score=Score(0.2, 2.0, 0.9),
    compact=Compact("v", score=1.5),
    when_full="oldest",
)
POLICIES = [ByCount(3, keep=0.5), ByBloom(2, 128), ByChance(0.5), ByAge(7), ByNorm(0.1), ByScore(2), Score()]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_policy_survives_its_plain_form(policy):
    kinds = {kind.__name__: kind for kind in (*ADMISSIONS, *EVICTIONS, Score)}
    assert read_named("policy", policy.to_dict(), kinds) == policy


def test_a_table_survives_its_plain_form_with_all_its_policies():
    assert TableSpec.from_dict(FULL.to_dict()) == FULL


def test_a_plain_table_is_described_as_it_always_was():
    assert list(PLAIN.to_dict()) == ["name", "seed", "parts"]
    assert TableSpec.from_dict(PLAIN.to_dict()) == PLAIN


def table_of(**policies):
    return TableSpec.from_dict(PLAIN.to_dict() | policies)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ByCount(0), "ByCount.count: expected a whole number in 1..65535, got 0"),
        (lambda: ByCount(2.5), "whole number"),
        (lambda: ByCount(2, keep=1.5), "ByCount.keep"),
        (lambda: ByBloom(256), "1..255"),
        (lambda: ByBloom(2, 1000), "power of two, got 1000; the next is 1024"),
        (lambda: ByChance(0.0), "above 0"),
        (lambda: ByChance(float("nan")), "a number above 0 and at most 1, got nan"),
        (lambda: ByAge(-1), "ByAge.age"),
        (lambda: ByNorm(0), "ByNorm.norm"),
        (lambda: ByScore(float("inf")), "ByScore.score"),
        (lambda: Score(decay=1.1), "Score.decay"),
        (lambda: Score(nonclick=-1), "Score.nonclick"),
        (lambda: Compact("v"), "exactly one"),
        (lambda: Compact("v", shows=1, score=1), "exactly one"),
        (lambda: Compact("v", shows=0), "Compact.shows"),
        (lambda: table_of(admission={"name": "ByMood"}), "ByCount, ByBloom, ByChance, got 'ByMood'"),
        (lambda: table_of(eviction=[{"name": "ByAge", "days": 3}]), "age: is missing; it takes age"),
        (lambda: table_of(compact={"shows": 3}), "table t: compact.wide_from: is missing; it takes"),
        (lambda: replace(PLAIN, storage="float8"), "table t: storage: expected one of float32, bfloat16"),
        (lambda: replace(PLAIN, clock="days"), "clock"),
        (lambda: replace(PLAIN, when_full="panic"), "when_full"),
        (lambda: replace(PLAIN, compact=Compact("w", shows=2)), "compact.wide_from: expected one of"),
        (lambda: replace(PLAIN, eviction=(ByScore(1),)), "eviction by score needs a score"),
        (lambda: replace(PLAIN, compact=Compact("v", score=1)), "compact by score needs a score"),
        (lambda: replace(PLAIN, when_full="lowest_score"), "needs a score"),
        (lambda: replace(PLAIN, eviction=(ByAge(1), ByAge(2))), "once"),
        (lambda: replace(PLAIN, eviction=3), "eviction: expected a list of ByAge, ByNorm or ByScore, as in"),
        (
            lambda: replace(PLAIN, compact="v"),
            "compact: expected a Compact or None, as in pslib",
        ),
        (
            lambda: replace(PLAIN, score=0.1, admission=ByCount(2, keep=0.5)),
            "score: expected a Score",
        ),
        (
            lambda: replace(PLAIN, admission=ByAge(1)),
            "admission: expected a ByCount, a ByBloom",
        ),
        (lambda: replace(PLAIN, admission=ByCount(2, keep=0.5), score=Score()), "fade together"),
        (lambda: TableSpec.from_dict(PLAIN.to_dict() | {"colour": 1}), "unknown 'colour'"),
        (
            lambda: TableSpec.from_dict(FULL.to_dict() | {"score": {"name": "Score", "decay": 2}}),
            "table t: score",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(make, named):
    with pytest.raises(ConfigurationError, match=named.replace("(", r"\(").replace(".", r"\.")):
        make()


def test_all_problems_of_a_table_are_told_at_once():
    with pytest.raises(ConfigurationError) as caught:
        replace(PLAIN, storage="x", clock="y", eviction=(ByScore(1),), compact=Compact("u", shows=1))
    assert len(caught.value.problems) == 4


def test_a_rule_alone_is_a_sequence_of_one():
    assert replace(PLAIN, eviction=ByAge(3)) == replace(PLAIN, eviction=(ByAge(3),))


def test_a_plain_row_counts_nothing():
    assert (PLAIN.needs_seen, PLAIN.needs_counts, PLAIN.takes_counts, PLAIN.maintained) == (False,) * 4
    assert RowLayout.of(PLAIN).head == ()


@pytest.mark.parametrize(
    ("policies", "seen", "counts", "takes"),
    [
        ({"eviction": (ByAge(1),)}, True, False, False),
        ({"when_full": "oldest"}, True, False, False),
        ({"eviction": (ByNorm(1),)}, False, False, False),
        ({"score": Score()}, False, True, True),
        ({"compact": Compact("v", shows=3)}, False, True, True),
        ({"admission": ByCount(2)}, False, False, True),
        ({"admission": ByBloom(2)}, False, False, True),
        ({"admission": ByChance(0.5)}, False, False, False),
    ],
)
def test_a_row_counts_what_the_policies_of_its_table_ask_for_and_no_more(policies, seen, counts, takes):
    spec = replace(PLAIN, **policies)
    assert (spec.needs_seen, spec.needs_counts, spec.takes_counts) == (seen, counts, takes)


def test_counts_fade_by_the_score_or_by_what_admission_keeps():
    assert replace(PLAIN, score=Score(decay=0.7), admission=ByCount(2)).decay_factor == 0.7
    assert replace(PLAIN, admission=ByBloom(2, keep=0.5)).decay_factor == 0.5
    assert replace(PLAIN, admission=ByCount(2)).decay_factor == 1
    assert replace(PLAIN, admission=ByCount(2, keep=0.5)).maintained


def test_the_clock_of_a_table_says_what_now_is():
    assert PLAIN.now(7, 2.5) == 7.0
    assert replace(PLAIN, clock="seconds").now(7, 2.5) == 2.5


def test_a_layout_says_where_everything_stands():
    spec = replace(FULL, storage="int8", parts=(PartSpec("w", 1, Adagrad()), PartSpec("v", 4, Adagrad())))
    wide, narrow = RowLayout.of(spec), RowLayout.of(spec, narrow=True)
    assert wide.head == ("last_seen", "shows", "clicks", "w_scale", "v_scale")
    assert [(part.name, at, state) for part, at, state in wide.columns()] == [
        ("w", slice(0, 1), slice(5, 6)),
        ("v", slice(1, 5), slice(6, 10)),
    ]
    assert narrow.head == ("last_seen", "shows", "clicks", "w_scale")
    assert (narrow.dim, narrow.state_floats, wide.state_floats) == (1, 5, spec.state_floats)


def test_a_plain_store_is_made_of_a_plain_table():
    store = make_store(PLAIN, 2)
    store.push(np.array([1, 2], np.uint64), np.ones((2, 5), np.float32))
    assert store.rows == 2
