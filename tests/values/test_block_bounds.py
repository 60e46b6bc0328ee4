"""Blocks of the dense parameters: all that is asked of many at once is what each says of itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pslib.table.partition_map import BlockBounds

CASES = st.tuples(st.integers(0, 200), st.integers(1, 20)).flatmap(
    lambda case: st.tuples(st.just(BlockBounds(*case)), st.sets(st.integers(0, case[1] - 1)).map(sorted))
)


@given(CASES)
def test_blocks_cover_the_vector_in_their_order(case: tuple[BlockBounds, list[int]]) -> None:
    bounds, _chosen = case
    spans = [bounds(block) for block in range(bounds.blocks)]
    assert [i for first, last in spans for i in range(first, last)] == list(range(bounds.length))
    assert bounds.used == sum(first < last for first, last in spans)


@given(CASES)
def test_sizes_and_runs_of_some_blocks_are_those_of_each(case: tuple[BlockBounds, list[int]]) -> None:
    bounds, chosen = case
    blocks = np.array(chosen, np.uint32)
    spans = [bounds(block) for block in chosen]
    sizes = [last - first for first, last in spans]
    assert bounds.ends(blocks).tolist() == np.cumsum(sizes).tolist()
    assert bounds.floats(blocks) == sum(sizes)
    runs = bounds.runs(blocks)
    assert [i for run in runs for i in range(*run)] == [i for span in spans for i in range(*span)]
    assert len(runs) == sum(block - 1 not in chosen for block in chosen)
