"""The first hour of a user, from a CSV to predictions and similar items: commands, a script, a notebook.

Everything happens in an empty environment that has the wheel, with an empty HOME. The commands and the script
are those of the README. It takes some two minutes after the installation, on two idle cores.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pslib
from tests.first_hour.clicks_csv import CITIES, COLUMNS, FILMS, film, write_clicks
from tests.first_hour.first_screen import COMMANDS, SCRIPT
from tests.support.processes.installed import Installed, installed, wheel_of_this_checkout

HERE = Path(__file__).parent
NEW_ROWS = 200
LEARNT = 0.75
"""AUC that only what has learnt of users and films has; the city and the price of a click say nothing."""

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """An environment with the wheel, pandas, a picture and a notebook; HOME has two CSV files."""
    folder = tmp_path_factory.mktemp("user")
    wheel = wheel_of_this_checkout(folder)
    with installed(wheel, folder, "pandas", "matplotlib", "ipykernel", "nbclient") as user:
        write_clicks(user.home / "clicks.csv", user.home / "new.csv", new_rows=NEW_ROWS)
        yield user


@pytest.fixture(scope="module")
def said(user: Installed) -> dict[str, str]:
    """Outputs of the commands of the README, by name; they run in the order of the page."""
    return {words[1]: user.run(*words) for words in COMMANDS}


def auc_in(text: str) -> float:
    return max(float(found) for found in re.findall(r"(?i)auc[ =]+(0\.\d+)", text))


def test_describe_writes_a_job_file_that_trains_and_tests_without_a_change(
    user: Installed, said: dict[str, str]
) -> None:
    job = (user.home / "clicks.yaml").read_text(encoding="utf-8")
    assert "genres" in said["describe"]
    assert 'separator: "|"' in job or "separator: '|'" in job
    assert "test_share" in job
    assert "#" in job


def test_training_ends_with_the_auc_of_rows_it_has_not_seen(user: Installed, said: dict[str, str]) -> None:
    assert auc_in(said["train"]) > LEARNT
    run = user.home / "runs" / "clicks"
    assert {"run.png", "metrics.jsonl", "summary.json", "job.yaml"} <= {path.name for path in run.iterdir()}


def test_rows_of_a_new_csv_get_a_prediction_each_and_stay_as_they_are(
    user: Installed, said: dict[str, str]
) -> None:
    with (user.home / "new.csv").open(encoding="utf-8", newline="") as file:
        given = list(csv.DictReader(file))
    with (user.home / "scores.csv").open(encoding="utf-8", newline="") as file:
        scored = list(csv.DictReader(file))
    assert len(scored) == len(given) == NEW_ROWS
    assert all(0 < float(one["prediction"]) < 1 for one in scored)
    for name in ("user", "item", "city", "genres"):
        assert [one[name] for one in scored] == [one[name] for one in given]
    assert set(scored[0]) == {*COLUMNS[:-1], "prediction"}
    assert {one["city"] for one in scored} <= {*CITIES, ""}


def test_the_nearest_films_are_films_and_each_film_has_a_vector(
    user: Installed, said: dict[str, str]
) -> None:
    films = {film(number) for number in range(FILMS)}
    near = [line.split("  ", 1)[1] for line in said["nearest"].splitlines()]
    assert len(near) == 10
    assert set(near) <= films - {"Amélie"}
    table = pq.read_table(user.home / "items.parquet")
    assert set(table["item"].to_pylist()) == films
    assert table.schema.field("vector").type.list_size > 0


def test_the_script_of_the_readme_does_the_same_on_a_frame(user: Installed) -> None:
    (user.home / "clicks.py").write_text(SCRIPT, encoding="utf-8")
    said = user.run("python", "clicks.py")
    assert auc_in(said) > LEARNT
    assert "cosine" in said


PUBLIC = ("fit", "evaluate", "save", "load", "history", "model", "settings", "cluster")
"""Names of a `Trainer` that the tab key has to offer."""


@pytest.fixture(scope="module")
def seen(user: Installed) -> dict[str, Any]:
    """Outputs of the cells of a notebook whose training is interrupted, by cell."""
    program, cells = (shutil.copy(HERE / name, user.home) for name in ("run_notebook.py", "notebook.py"))
    said = user.run("python", program, cells, "runs/notebook/metrics.jsonl", "pslib.", "trainer.")
    told: dict[str, Any] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return told


def test_the_stop_button_of_a_notebook_ends_a_fit_and_the_same_cell_goes_on(seen: dict[str, Any]) -> None:
    assert [line.partition(":")[0] for line in seen["interrupted"]["error"]] == ["KeyboardInterrupt"]
    assert seen["goes on"]["error"] == []
    assert seen["counted"]["text"] == str(4 * 36_000)  # each example once an epoch
    assert auc_in(seen["result"]["text"]) > LEARNT


def test_models_results_and_the_history_are_tables(seen: dict[str, Any]) -> None:
    for cell in ("model", "result", "history", "loaded"):
        assert seen[cell]["html"].startswith("<table>"), seen[cell]
    assert "image/png" in seen["plot"]["types"]
    assert seen["predictions"]["text"] == f"({NEW_ROWS},)"


def test_a_mistake_is_one_line_with_what_is_meant(seen: dict[str, Any]) -> None:
    (line,) = seen["a call with a mistake"]["error"]
    assert line.endswith("Trainer.fit: unknown keyword 'num_epochs'; did you mean 'epochs'?")


def test_the_tab_key_offers_public_names_alone(seen: dict[str, Any]) -> None:
    assert {"Trainer", "Schema", "connect", "load"} <= set(seen["completions"]["pslib."])
    assert set(seen["completions"]["pslib."]) <= set(pslib.__all__)
    offered = seen["completions"]["trainer."]
    assert set(PUBLIC) <= set(offered)
    assert not [name for name in offered if name.startswith("_")]
