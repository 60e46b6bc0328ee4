"""Leases: each has one holder, also when answers are lost and trainers die."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pslib.coordinator.leases import Grant, LeaseBook, stream_of

ADA, BOB = (0, 11), (1, 22)


def _book(*windows: int) -> LeaseBook:
    return LeaseBook(np.array(windows, np.uint32))


def test_leases_are_given_in_order_each_to_one_trainer() -> None:
    book = _book(0, 0, 0)
    assert book.next(ADA, []) == Grant(0, 0, 0)
    assert book.next(ADA, [0]) == Grant(1, 0, 0)
    assert book.next(BOB, []) == Grant(2, 0, 0)
    assert book.next(BOB, [2]) is None


def test_a_trainer_is_kept_in_its_window_and_others_get_windows_of_their_own() -> None:
    """A window that two trainers share is decoded twice."""
    book = _book(0, 0, 1, 1)
    assert [book.next(ADA, []), book.next(BOB, [])] == [Grant(0, 0, 0), Grant(2, 0, 0)]
    assert book.end(BOB, 2, 0)
    assert book.next(BOB, []) == Grant(3, 0, 0)
    assert book.end(ADA, 0, 0)
    assert book.next(ADA, []) == Grant(1, 0, 0)


def test_a_trainer_stays_in_its_window_also_when_an_earlier_lease_comes_free() -> None:
    book = _book(0, 1, 0)
    assert [book.next(ADA, []), book.next(BOB, [])] == [Grant(0, 0, 0), Grant(1, 0, 0)]
    book.trainer_lost(BOB)
    assert book.next(ADA, [0]) == Grant(2, 0, 0)
    assert book.next(ADA, [0, 2]) == Grant(1, 1, 0)


def test_a_lost_answer_gives_the_same_lease_again() -> None:
    """The trainer does not know that it holds lease 0; another lease would leave 0 without a trainer."""
    book = _book(0, 0)
    assert book.next(ADA, []) == book.next(ADA, []) == Grant(0, 0, 0)
    assert book.next(ADA, [0]) == Grant(1, 0, 0)


def test_an_heir_resumes_at_the_first_batch_that_is_not_applied_everywhere_under_the_next_epoch() -> None:
    book = _book(0)
    book.next(ADA, [])
    book.progress(ADA, {0: 3})
    book.progress(ADA, {0: 2})  # an older heartbeat that was overtaken
    assert book.trainer_lost(ADA) == [0]
    assert book.next(BOB, []) == Grant(0, 1, 3)


def test_progress_of_an_heir_goes_on_from_that_of_the_dead() -> None:
    book = _book(0)
    book.next(ADA, [])
    book.progress(ADA, {0: 3})
    book.trainer_lost(ADA)
    book.next(BOB, [])
    book.progress(ADA, {0: 9})
    book.trainer_lost(BOB)
    assert book.next(ADA, []) == Grant(0, 2, 3)


def test_done_below_waits_for_the_lowest_lease() -> None:
    book = _book(0, 0, 0)
    for known in range(3):
        book.next(ADA, range(known))
    book.end(ADA, 2, 0)
    book.end(ADA, 1, 0)
    assert book.done_below == 0
    book.end(ADA, 0, 0)
    assert book.done_below == 3


def test_a_window_is_free_again_when_its_trainer_is_lost() -> None:
    book = _book(0, 0, 1)
    book.next(ADA, [])
    book.trainer_lost(ADA)
    assert book.next(BOB, []).index == 0  # type: ignore[union-attr]


def test_a_job_without_leases_is_done() -> None:
    book = _book()
    assert book.done
    assert book.next(ADA, []) is None


def test_streams_of_leases_stay_below_those_of_clients() -> None:
    assert stream_of(2, 5) == (2 << 32) + 5
    assert stream_of((1 << 31) - 1, (1 << 32) - 1) < 1 << 63


class LeaseBookAgainstADict(RuleBasedStateMachine):
    """Invariant: each lease is free, held by one trainer, or done."""

    LEASES = 6

    def __init__(self) -> None:
        super().__init__()
        self.book = _book(*(index // 2 for index in range(self.LEASES)))
        self.held: dict[int, tuple[tuple[int, int], int]] = {}
        self.done: set[int] = set()
        self.epochs = dict.fromkeys(range(self.LEASES), 0)

    @rule(holder=st.sampled_from([ADA, BOB]))
    def ask(self, holder: tuple[int, int]) -> None:
        mine = [index for index, (who, _epoch) in self.held.items() if who == holder]
        grant = self.book.next(holder, mine)
        free = self.LEASES - len(self.held) - len(self.done)
        assert (grant is None) == (free == 0)
        if grant:
            assert grant.index not in self.held
            assert grant.index not in self.done
            assert grant.epoch == self.epochs[grant.index]
            self.held[grant.index] = (holder, grant.epoch)

    @rule(holder=st.sampled_from([ADA, BOB]), index=st.integers(0, LEASES - 1), epoch=st.integers(0, 2))
    def end(self, holder: tuple[int, int], index: int, epoch: int) -> None:
        may = self.held.get(index) == (holder, epoch)
        assert self.book.end(holder, index, epoch) == (may or index in self.done)
        if may:
            del self.held[index]
            self.done.add(index)

    @rule(holder=st.sampled_from([ADA, BOB]))
    def lose(self, holder: tuple[int, int]) -> None:
        lost = [index for index, (who, _epoch) in self.held.items() if who == holder]
        assert sorted(self.book.trainer_lost(holder)) == sorted(lost)
        for index in lost:
            del self.held[index]
            self.epochs[index] += 1

    @invariant()
    def counts_agree(self) -> None:
        assert self.book.done_count == len(self.done)
        assert self.book.done == (len(self.done) == self.LEASES)
        assert set(range(self.book.done_below)) <= self.done


LeaseBookAgainstADict.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLeaseBookAgainstADict = LeaseBookAgainstADict.TestCase
