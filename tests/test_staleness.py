"""The bound on staleness: how it rises, and that the pipeline keeps to it."""

from hypothesis import given
from hypothesis import strategies as st

from pslib.trainer.staleness import StalenessBound


@given(bound=st.integers(0, 50), warmup=st.integers(0, 200))
def test_the_bound_rises_evenly_from_zero_and_ends_where_it_should(bound, warmup):
    staleness = StalenessBound(bound, warmup)
    seen = [staleness.now]
    rises = [staleness.batch_done() for _ in range(warmup + 5)]
    for rise in rises:
        seen.append(seen[-1] + rise)
    assert seen[0] == (0 if warmup else bound)
    assert seen[-1] == staleness.now == bound
    assert all(seen[done] == bound * done // warmup for done in range(warmup))


def test_a_model_that_goes_on_needs_no_warmup():
    staleness = StalenessBound(3, 100)
    staleness.skip_warmup()
    assert staleness.now == 3
    assert staleness.batch_done() == 0


def test_without_warmup_the_whole_bound_holds_from_the_first_batch():
    assert StalenessBound(4, 0).now == 4
