"""The CSV files of the README: clicks of users on films, as an export of a shop looks.

Ids are texts, names have all kinds of letters, a column holds lists, another one times, and values are
missing. A click depends on user, item and genres, so that there is something to learn.
"""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

COLUMNS = ("time", "user", "item", "city", "price", "genres", "click")
ITEMS = (
    "Amélie",
    "千と千尋の神隠し",
    "Der Himmel über Berlin",
    'Dr. "No"',
    "Вий",
    "Cléo, de 5 à 7",
    "東京物語",
    "8½",
)
GENRES = ("drama", "comédie", "sci-fi", "анимация", "western")
CITIES = ("Zürich", "São Paulo", "東京", "Łódź")
USERS, FILMS = 500, 200
BEGIN = datetime(2026, 3, 1, 8)


def film(number: int) -> str:
    """Name of a film."""
    return ITEMS[number] if number < len(ITEMS) else f"film {number}"


def write_clicks(clicks: Path, new: Path, rows: int = 40_000, new_rows: int = 200) -> None:
    """Write a CSV of clicks and one of rows to come, which has no clicks yet; always the same."""
    random = np.random.default_rng(7)
    tastes, films = random.normal(size=(USERS, 2)), random.normal(size=(FILMS, 2))
    eager, liked = random.normal(size=USERS), random.normal(size=FILMS)
    genres_of = [random.choice(len(GENRES), random.integers(0, 4), replace=False) for _ in range(FILMS)]
    fond_of = random.normal(size=len(GENRES))
    with (
        clicks.open("w", encoding="utf-8", newline="") as of_clicks,
        new.open("w", encoding="utf-8", newline="") as of_new,
    ):
        writers = csv.writer(of_clicks), csv.writer(of_new)
        writers[0].writerow(COLUMNS)
        writers[1].writerow(COLUMNS[:-1])
        for row in range(rows + new_rows):
            user, item = random.integers(USERS), random.integers(FILMS)
            score = eager[user] + liked[item] + tastes[user] @ films[item] + fond_of[genres_of[item]].sum()
            time = BEGIN + timedelta(seconds=int(row) * 37)
            values = [
                time.isoformat(sep=" "),
                f"u{user}",
                film(item),
                random.choice(CITIES) if random.random() > 0.1 else "",
                f"{random.gamma(2, 5):.2f}" if random.random() > 0.1 else "",
                "|".join(GENRES[place] for place in genres_of[item]),
            ]
            click = int(random.random() < 1 / (1 + np.exp(-score)))
            if row < rows:
                writers[0].writerow([*values, click])
            else:
                writers[1].writerow(values)
