"""A collective call: its leases, clocks and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.coordinator.leases import Grant, JobClocks, LeaseBook, RankedLeases, book_of
from pslib.metrics.metrics import ScoreCounts
from pslib.metrics.ranking import plain_ranks

__all__ = ["CollectiveJob", "epochs_done", "examples_of", "planned_of"]

SCORES_KEPT = 16
"""Parts of an evaluation kept before they are merged."""


@dataclass(slots=True)
class CollectiveJob:
    """A `fit`, `evaluate`, `save` or `load` that all trainers have called.

    Attributes
    ----------
    what, fingerprint, details
        As the first trainer opened it.
    book : LeaseBook
        The assignment of leases to trainers.
    opened_s : float
    scores : list of ScoreCounts
        Scores of an evaluation so far.
    outcome : dict or None
        The outcome, once all leases are done.
    clocks : JobClocks
        The clocks of trainers, where they report them (ssp).
    words : dict
        The textual result of its only lease, if any: it becomes part of the outcome.
    given_up : bool
        Whether all trainers have left it.
    examples_before : int
        Examples of a fit that were trained in an earlier run, which this one continues.
    failed_at : set of (int, int)
        Trainers, with incarnations, whose call has failed and was not retried since.
    """

    what: str
    fingerprint: int
    details: Mapping[str, Any]
    book: LeaseBook
    opened_s: float
    scores: list[ScoreCounts] = field(default_factory=list)
    outcome: dict[str, Any] | None = None
    clocks: JobClocks = field(default_factory=JobClocks)
    words: dict[str, Any] = field(default_factory=dict)
    given_up: bool = False
    examples_before: int = 0
    failed_at: set[tuple[int, int]] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """Return True if it is over: done, or given up."""
        return self.given_up or self.book.done

    @property
    def examples(self) -> int:
        """Examples that it trains on; for a job given up, those that were trained."""
        return self._examples_applied if self.given_up else int(self.details.get("examples", 0))

    @property
    def examples_trained(self) -> int:
        """Examples whose batches are applied everywhere; exact once the job is over."""
        return self.examples if self.over else self._examples_applied

    @property
    def _examples_applied(self) -> int:
        sizes = [int(self.details.get(name, 0)) for name in ("examples", "lease_rows", "batch_rows")]
        return self.book.examples_trained(*sizes)

    @property
    def is_of_before(self) -> bool:
        """Return True if an earlier run trained all of it."""
        return self.examples_before == self.examples

    def go_on(self, now_s: float) -> None:
        """Continue the job in a new run: earlier examples count as trained before, its time begins now."""
        self.examples_before, self.opened_s = self.examples_trained, now_s

    def give(self, holder: tuple[int, int], holding: Iterable[int], since_s: float) -> Grant | None:
        """Grant a lease to a trainer, as `LeaseBook.next` does."""
        working = self.book.holders()
        grant = self.book.next(holder, holding, since_s)
        self.failed_at.discard(holder)
        if grant and holder not in working:
            self.clocks.begin(holder, working)
        return grant

    def take_back(self, holder: tuple[int, int]) -> None:
        """Free a trainer's leases after its call has failed; that trainer might never retry."""
        self.book.trainer_lost(holder)
        self.failed_at.add(holder)

    def needs(self, rank: int) -> bool:
        """Return True if the job can't be done without this trainer."""
        return isinstance(self.book, RankedLeases) and self.book.needs(rank)

    def add_scores(self, scores: ScoreCounts) -> None:
        """Add the scores of one lease of an evaluation."""
        self.scores.append(scores)
        if len(self.scores) >= SCORES_KEPT:  # merge equal scores to bound memory
            self.scores[:] = [ScoreCounts.merge(self.scores)]

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `of_plain`."""
        counts: list[tuple[NDArray[Any], ...]] = [
            (one.scores, one.positives, one.negatives) for one in self.scores
        ]
        return {
            "what": self.what,
            "fingerprint": self.fingerprint,
            "details": dict(self.details),
            "book": self.book.plain(),
            "opened_s": self.opened_s,
            "scores": [[array.tobytes() for array in arrays] for arrays in counts],
            "outcome": self.outcome,
            "clocks": self.clocks.plain(),
            "words": self.words,
            "given_up": self.given_up,
            "examples_before": self.examples_before,
            "failed_at": [list(holder) for holder in sorted(self.failed_at)],
        }

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> CollectiveJob:
        """Build the job that returned this `plain`."""
        kinds = (np.float32, np.uint64, np.uint64)
        counts = [map(np.frombuffer, arrays, kinds) for arrays in plain["scores"]]
        book, clocks = book_of(plain["book"]), JobClocks.of(plain["clocks"])
        about = (plain["what"], plain["fingerprint"], plain["details"])
        scores = [ScoreCounts(*arrays) for arrays in counts]
        opened_s, outcome, words = plain["opened_s"], plain["outcome"], plain["words"]
        given_up, before = bool(plain.get("given_up")), int(plain.get("examples_before", 0))
        failed_at = {(rank, incarnation) for rank, incarnation in plain.get("failed_at", ())}
        job = CollectiveJob(*about, book, opened_s, scores, outcome, clocks, words, given_up, before)
        job.failed_at = failed_at
        return job

    def give_up(self, now_s: float) -> None:
        """Give the job up: all trainers have left it, and no lease of it is granted any more."""
        self.given_up = True
        for holder in self.book.holders():
            self.book.trainer_lost(holder)
        self.scores.clear()
        if self.what == "fit":  # the time of a partial fit counts; a part of any other job is void
            took = {"kind": "fit", "seconds": now_s - self.opened_s, "given_up": True}
            self.outcome = {**self.details, **took, "examples": self.examples}

    def finish(self, now_s: float) -> bool:
        """Write the outcome, once; return whether this call did it."""
        if self.outcome is not None:
            return False
        self.outcome = {"kind": self.what, "seconds": now_s - self.opened_s, **self.details, **self.words}
        if self.what == "evaluate":
            counts = ScoreCounts.merge(self.scores) if self.scores else ScoreCounts.empty()
            self.outcome |= asdict(counts.result())
            self.scores.clear()
        if self.what == "rank":
            self.outcome |= plain_ranks(ScoreCounts.merge(self.scores), self.details.get("at", ()))
            self.scores.clear()
        return True


def examples_of(fits: Sequence[CollectiveJob]) -> tuple[int, int]:
    """Return the trained examples of the whole training, and those from before this run.

    The numbers come from leases, not from trainers' reports: a resumed run has other trainers than the one
    before, a dead trainer's last report may lack applied batches, and a successor may report some again.
    """
    return sum(job.examples_trained for job in fits), sum(job.examples_before for job in fits)


def planned_of(fits: Sequence[CollectiveJob], over: bool) -> tuple[int, int]:
    """Return the planned epochs of the training and the planned examples of all fits, done ones included.

    A call of many epochs is several jobs, one after the other. When all is ``over``, nothing more is planned,
    even if the call requested it: a fit may stop early.
    """
    epochs = _begun_after(fits) + (int(fits[-1].details.get("epochs", 0)) if fits else 0)
    examples = sum(job.examples for job in fits)
    last = fits[-1].details if fits and not over else {}
    to_come, of_last = int(last.get("epochs_to_come", 0)), int(last.get("epochs", 0))
    more = int(last.get("examples", 0)) * to_come // of_last if of_last else 0
    return epochs + to_come, examples + more


def epochs_done(fits: Sequence[CollectiveJob]) -> int:
    """Return the completed epochs of the training."""
    if not fits:
        return 0
    epochs, leases = int(fits[-1].details.get("epochs", 0)), fits[-1].book.windows.size
    return _begun_after(fits) + (epochs * fits[-1].book.done_count // leases if leases else epochs)


def _begun_after(fits: Sequence[CollectiveJob]) -> int:
    """Return the epochs before the last fit, including those of earlier runs that it continues."""
    before = sum(int(job.details.get("epochs", 0)) for job in fits[:-1])
    return int(fits[-1].details.get("first_epoch", before)) if fits else 0
