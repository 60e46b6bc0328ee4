"""Chart of a run: its panels, marks and title, for every kind of model and run."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from pslib.recorder.picture import picture
from pslib.recorder.records import EVALUATION, PROGRESS, Record

SUMMARY: dict[str, Any] = {
    "job": None, "model": "DeepFM", "servers": 2, "trainers": 1, "examples": 900, "examples_before": 300,
    "seconds": 4.0, "auc": None,
}  # fmt: skip


def progress(seconds: float, epoch: int = 0, **figures: Any) -> Record:
    given = {"loss": 0.5, "examples_per_s": 100.0, **figures}
    return Record(event=PROGRESS, seconds=seconds, epoch=epoch, examples=int(100 * seconds), **given)


def evaluation(seconds: float, name: str = "valid", epoch: int = 1, **figures: Any) -> Record:
    return Record(event=EVALUATION, seconds=seconds, epoch=epoch, examples=100, name=name, **figures)


def labels_of(figure: Any) -> list[str]:
    return [axes.get_ylabel() for axes in figure.axes]


def marks_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def legend_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def title_of(figure: Any) -> list[str]:
    return figure._suptitle.get_text().splitlines()


def test_a_model_of_clicks_shows_loss_auc_and_speed() -> None:
    records = [progress(1, auc=0.6), progress(2, auc=0.7), evaluation(2, "test", auc=0.75)]
    figure = picture([records], SUMMARY)
    assert labels_of(figure) == ["log loss (last second)", "AUC (last 10 s)", "examples/s"]
    assert legend_of(figure.axes[1]) == ["before training on it", "test 0.7500"]


def test_a_model_that_ranks_shows_recall_and_ndcg_at_its_largest_k() -> None:
    ranked = [
        evaluation(second, name, epoch, k=k, recall=0.1 * epoch, ndcg=0.05, mrr=0.01)
        for second, name, epoch in ((1, "valid", 1), (2, "valid", 2), (3, "test", 2))
        for k in (10, 20)
    ]
    chart = picture([[progress(1), progress(3), *ranked]], SUMMARY)
    assert labels_of(chart) == ["loss (last second)", "Recall and NDCG at 20", "examples/s"]
    told = [f"{name} {figure}" for figure in ("Recall 0.2000", "NDCG 0.0500") for name in ("valid", "test")]
    assert legend_of(chart.axes[1]) == told
    assert [list(line.get_ydata()) for line in chart.axes[1].lines[:1]] == [[0.1, 0.2]]
    assert title_of(chart)[1].endswith(", Recall@20 0.2000")


def test_a_model_that_ranks_and_was_not_asked_to_shows_loss_and_speed() -> None:
    assert labels_of(picture([[progress(1)]], SUMMARY)) == ["loss (last second)", "examples/s"]


def test_the_end_of_each_epoch_is_marked_once() -> None:
    records = [progress(1), progress(2, 1), progress(3, 1), progress(4, 2)]
    figure = picture([records], SUMMARY)
    assert marks_of(figure) == ["epoch 1", "epoch 2"]
    assert [text.xy[0] for text in figure.axes[0].texts] == [2, 4]


def test_labels_of_marks_that_are_near_each_other_stand_in_lines_of_their_own() -> None:
    first = [progress(1), progress(99, 1), progress(100, 1)]
    figure = picture([first, [progress(1, 1), progress(100, 2)]], SUMMARY)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert marks_of(figure) == ["epoch 1", "resumed", "epoch 2"]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert boxes[0].y0 == boxes[2].y0, "a label with room stays in the first line"


def test_of_many_epochs_every_nth_is_marked() -> None:
    assert marks_of(picture([[progress(i, i) for i in range(40)]], SUMMARY))[:2] == ["epoch 4", "epoch 8"]


def test_a_stream_has_no_epochs_to_mark() -> None:
    records = [progress(1), evaluation(1, "window", files=1, auc=0.5), progress(2, 1)]
    assert marks_of(picture([records], SUMMARY)) == []


def test_a_resumed_run_shows_its_launches_one_after_the_other_and_each_evaluation_once() -> None:
    first = [progress(1), progress(5, 1), evaluation(5, auc=0.6)]
    second = [evaluation(0, auc=0.6), progress(1, 1), progress(4, 2), evaluation(4, epoch=2, auc=0.7)]
    figure = picture([first, second], {**SUMMARY, "auc": 0.7})
    assert [list(line.get_xdata()) for line in figure.axes[0].lines[:2]] == [[1, 5], [6, 9]]
    assert marks_of(figure) == ["epoch 1", "resumed", "epoch 2"]
    points = next(line for line in figure.axes[1].lines if line.get_label() == "valid 0.7000")
    assert list(zip(points.get_xdata(), points.get_ydata(), strict=True)) == [(5, 0.6), (9, 0.7)]
    assert title_of(figure)[1] == "2 servers, 1 trainer, 900 examples in 2 launches of 9.0 s, AUC 0.7000"


@pytest.mark.parametrize(
    ("job", "model", "first"),
    [
        ("train.py", "DeepFM", ["train.py: DeepFM"]),
        ("deepfm", "deepfm", ["deepfm"]),
        (None, "DeepFM", ["DeepFM"]),
        ("train.py", None, ["train.py"]),
        (None, None, []),
    ],
)
def test_the_title_names_script_and_model_and_no_more_than_is_known(
    job: str | None, model: str | None, first: list[str]
) -> None:
    lines = title_of(picture([[progress(1)]], {**SUMMARY, "job": job, "model": model}))
    assert lines == [*first, "2 servers, 1 trainer, 600 examples in 4.0 s"]


def test_a_run_that_recorded_nothing_has_a_chart_too() -> None:
    assert labels_of(picture([[]], SUMMARY)) == ["loss (last second)", "examples/s"]
