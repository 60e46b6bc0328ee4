"""Data are small for a training of fewer than 300 steps a trainer, and the line says how to make more."""

from __future__ import annotations

import pytest

from pslib.data.inspect.small_data import enough_steps, few_steps


@pytest.mark.parametrize(
    ("rows", "batch_rows", "epochs", "trainers", "way", "advice"),
    [
        (2000, 4096, 1, 1, "1 epoch in batches of 4,096 takes 1 step", "128, epochs: 1} takes 16"),
        (270_000, 4096, 3, 1, "198 steps", "training: {batch_rows: 512, epochs: 1} takes 528"),
        (200_000, 4096, 10, 2, "by 2 trainers takes 245 steps each", "; cluster.trainers: 1 takes 490"),
        (200_000, 4096, 1, 2, "24 steps each", "epochs: 1} and cluster.trainers: 1 takes 391"),
        (20_000, 128, 1, 2, "78 steps each", "; cluster.trainers: 1 takes 157"),
    ],
)
def test_a_training_of_too_few_steps_gets_a_line_with_settings_of_more(
    rows, batch_rows, epochs, trainers, way, advice
):
    line = str(few_steps(rows, batch_rows, epochs, trainers))
    before, after = line.split(", too few to learn from; ")
    assert (before[-len(way) :], line[-len(advice) :]) == (way, advice)
    assert "\n" not in line
    assert after


@pytest.mark.parametrize(
    ("rows", "batch_rows", "epochs", "trainers"), [(270_000, 4096, 5, 1), (200_000, 512, 2, 2)]
)
def test_a_training_of_enough_steps_gets_none(rows, batch_rows, epochs, trainers):
    assert few_steps(rows, batch_rows, epochs, trainers) is None


@pytest.mark.parametrize("rows", [1, 50, 2000, 38_399, 38_400, 10**6, 10**9])
def test_what_is_proposed_for_clicks_is_one_epoch_and_is_not_warned_of(rows):
    batch_rows, epochs = enough_steps(rows, 4096)
    assert (128 <= batch_rows <= 4096, epochs) == (True, 1)
    assert few_steps(rows, batch_rows, epochs) is None


@pytest.mark.parametrize("rows", [1, 2000, 38_400, 10**6])
def test_sessions_are_trained_in_as_many_epochs_as_make_enough_steps(rows):
    batch_rows, epochs = enough_steps(rows, 4096, of_clicks=False)
    assert epochs * -(-rows // batch_rows) >= 300
    assert few_steps(rows, batch_rows, epochs, of_clicks=False) is None
    assert few_steps(rows, batch_rows, epochs) is None
