"""Texts are lists where their parts are exchangeable, and names where each place has words of its own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pslib.data.inspect.text_lists import TEXTS_MAX, TextSample

GENRES = ("Action", "Comedy", "Crime", "Drama", "Fantasy", "Horror", "Sci-Fi", "Thriller", "War", "Western")
CHOICE = np.random.default_rng(5)


def lists_in(texts: list[str | None]):
    sample = TextSample()
    sample.add(pa.array(texts, pa.string()))
    return sample.lists()


def genres(separator: str, low: int = 1, high: int = 5) -> list[str]:
    counts = CHOICE.integers(low, high, 800)
    return [separator.join(sorted(CHOICE.choice(GENRES, count, replace=False))) for count in counts]


@pytest.mark.parametrize("separator", ["|", ";", ", ", ",", " "])
def test_a_separator_is_found_by_the_values(separator):
    found = lists_in(genres(separator))
    assert found is not None
    assert found.separator == separator
    assert 2 < found.mean < 4


@pytest.mark.parametrize("separator", ["|", ",", " "])
def test_histories_of_ids_out_of_many_are_lists(separator):
    histories = [separator.join(map(str, CHOICE.zipf(1.2, n) % 100_000)) for n in CHOICE.integers(1, 30, 800)]
    assert getattr(lists_in(histories), "separator", None) == separator


def test_lists_that_all_have_one_length_are_lists_where_places_share_their_words():
    assert getattr(lists_in(genres("|", 3, 4)), "separator", None) == "|"


@pytest.mark.parametrize(
    "texts",
    [
        [
            "New York",
            "Los Angeles",
            "San José",
            "Paris",
            "London",
            "Oslo",
            "Rio de Janeiro",
            "Hong Kong",
            "Rom",
        ],
        [f"{country}|{n % 3}x|v{n}" for n in range(40) for country in ("US", "DE")],
        [
            f"{name}, {first}"
            for name in ("Doe", "Khan", "Li", "Roy")
            for first in ("Ann", "Bo", "Eve", "Max")
        ],
        [f"{n} {street} Street" for n in range(40) for street in ("Main", "High", "Oak")],
        [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(40)],
        [str(CHOICE.integers(0, 50, n).tolist()) for n in CHOICE.integers(1, 6, 200)],
        [f"https://example.org/a?x={n},{n + 1};y" for n in range(60)],
        ["a|b", "b", "a", "b|a"],
        [None, None],
    ],
    ids=["cities", "ids of parts", "names", "streets", "browsers", "lists of JSON", "URLs", "few", "nulls"],
)
def test_names_are_no_lists(texts):
    assert lists_in(texts) is None


def test_a_sample_takes_texts_of_all_parts_and_no_more_than_it_may():
    sample = TextSample()
    for part in range(100):
        sample.add(pa.array([f"{part}|{n}|{n + 1}" for n in range(3000)]))
    assert TEXTS_MAX / 2 < len(sample) <= TEXTS_MAX + 1024
