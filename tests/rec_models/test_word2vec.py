"""Which words word2vec takes for each other's neighbours, by the definition."""

from __future__ import annotations

import numpy as np
import pytest

from pslib.batch import Batch
from pslib.ragged import Ragged
from pslib.schema import Schema
from rec_models import build
from rec_models.engine.tape import Tape

WORDS = Schema(label=None, ragged=["liked"])
WINDOW = 3


def pairs(lengths: list[int], subsample: float, seed: int) -> list[tuple[int, int]]:
    """Of texts whose words are 0, 1, 2, ..., each once."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    texts = Ragged(np.arange(offsets[-1], dtype=np.int32), offsets)
    log_q = np.full(offsets[-1], np.log(0.5), np.float32)
    count, negatives = len(lengths), np.zeros(2, np.int32)
    nothing = (
        np.zeros((count, 0), np.float32),
        np.arange(offsets[-1], dtype=np.uint64),
        np.zeros((count, 0), "i4"),
    )
    batch = Batch(np.zeros(count, np.float32), *nothing, {"liked": texts}, negatives, log_q)
    model = build("word2vec", WORDS, {"dim": 2, "window": WINDOW, "subsample": subsample, "negatives": 1})
    centers, around, *_ = model.sampled(Tape(training=True, step_seed=seed), batch)
    return list(zip(centers.tolist(), around.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_word_looks_as_far_to_each_side_as_it_has_drawn_and_its_text_goes(seed: int) -> None:
    lengths = [9, 1, 0, 2, 12]
    found = pairs(lengths, 0, seed)
    assert len(set(found)) == len(found)
    reaches, first = set(), 0
    for length in lengths:
        for word in range(first, first + length):
            around = {other for center, other in found if center == word}
            reach = max((abs(other - word) for other in around), default=0)
            assert length == 1 or 1 <= reach <= WINDOW
            inside = range(max(first, word - reach), min(first + length, word + reach + 1))
            assert around == set(inside) - {word}
            reaches.add(reach)
        first += length
    assert {1, 2, 3} <= reaches


@pytest.mark.parametrize("seed", range(5))
def test_words_that_are_left_out_bring_others_nearer_but_not_those_of_another_text(seed: int) -> None:
    found = pairs([8] * 12, 0.125, seed)  # half of them are left out
    assert found
    assert all(center // 8 == other // 8 for center, other in found)
    left = sorted({word for pair in found for word in pair})
    assert 20 <= len(left) <= 70
    assert all(abs(left.index(center) - left.index(other)) <= WINDOW for center, other in found)
    assert any(abs(center - other) > WINDOW for center, other in found)
