"""Output and records of a run, made from cumulative looks at it."""

from __future__ import annotations

import builtins
import errno
import io
import json
import math
import re
from unittest import mock

import numpy as np
import pytest

import pslib
from pslib.metrics.metrics import LogitBins
from pslib.recorder import RunRecorder, history, recorder
from pslib.recorder.display import duration_text
from pslib.recorder.picture import picture
from pslib.recorder.records import COLUMNS
from pslib.trainer.run_records import record
from pslib.trainer.settings import TrainerSettings
from tests.support.counting import CountingModel
from tests.support.hand_clock import HandClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bins_of(good: int, bad: int) -> dict:
    """Bins with so many pairs in the right and in the wrong order."""
    bins = LogitBins()
    bins.add(np.float32([1] * good + [-1] * bad), np.ones(good + bad))
    bins.add(np.float32([0] * max(good + bad, 1)), np.zeros(max(good + bad, 1)))
    return {"bins_positive": bins.positives.tolist(), "bins_negative": bins.negatives.tolist()}


def training(examples: int, **more) -> dict:
    return {
        "phase": "training", "model": "Demo", "epoch": 1, "epochs": 2, "examples_total": 10_000,
        "examples": examples, "loss_sum": 0.5 * examples, "servers": 2, "trainers": 3, **more,
    }  # fmt: skip


def watch(out, looks, *, every_s=0.5, stream=None, progress=False, summary=None):
    """Feed ``looks`` at even times; give the lines written and the summary."""
    clock = HandClock()
    run = RunRecorder(out, clock, progress=progress, stream=stream or io.StringIO())
    for look in looks:
        clock.sleep_s(every_s)
        run.observe(look)
    whole = run.finish({"seed": 7} if summary is None else summary)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] if out else []
    return lines, whole


def test_at_most_one_line_a_second_and_each_tells_of_the_time_since_the_last(tmp_path):
    lines, _ = watch(tmp_path, [training(100 * i, loss_sum=0.25 * 100 * i) for i in range(1, 9)])
    assert [line["seconds"] for line in lines] == [1, 2, 3, 4]
    assert [line["examples"] for line in lines] == [200, 400, 600, 800]
    assert [line["examples_per_s"] for line in lines] == [200] * 4
    assert [line["loss"] for line in lines] == [0.25] * 4


def test_the_last_line_tells_of_the_end_and_once(tmp_path):
    looks = [training(100), training(200), training(300, phase="done")]
    lines, _ = watch(tmp_path / "late", looks)  # the last one came within a second of the line before
    assert [(line["seconds"], line["phase"]) for line in lines] == [(1, "training"), (1.5, "done")]
    lines, _ = watch(tmp_path / "told", looks, every_s=1)
    assert [(line["seconds"], line["phase"]) for line in lines[1:]] == [(2, "training"), (3, "done")]
    lines, _ = watch(tmp_path / "other", looks, every_s=1, summary={"phase": "preempted"})
    assert [(line["seconds"], line["phase"]) for line in lines[2:]] == [(3, "done"), (3, "preempted")]


def test_the_loss_is_that_of_the_window_and_not_of_all_examples(tmp_path):
    lines, _ = watch(tmp_path, [training(100, loss_sum=70), training(200, loss_sum=110)], every_s=1)
    assert [line["loss"] for line in lines[:2]] == pytest.approx([0.7, 0.4])


def test_the_recent_auc_forgets_what_is_older_than_ten_lines(tmp_path):
    poor, good = bins_of(0, 50), bins_of(50, 0)
    both = {name: (np.array(poor[name]) + np.array(good[name])).tolist() for name in poor}
    looks = [training(100, **poor)] * 11 + [training(200, **both)]
    lines, _ = watch(tmp_path, looks, every_s=1)
    assert (lines[0]["auc"], lines[11]["auc"]) == (0, 1)


def test_the_calibration_is_that_of_the_last_ten_lines_and_undefined_where_the_auc_is(tmp_path):
    bins = LogitBins()
    bins.add(np.float32([0.3] * 100), np.array([1] * 25 + [0] * 75))
    even = {"bins_positive": bins.positives.tolist(), "bins_negative": bins.negatives.tolist()}
    lines, _ = watch(tmp_path, [training(100), training(200, **even)], every_s=1)
    assert lines[0]["calibration"] is None
    assert lines[1]["calibration"] == pytest.approx(4 / (1 + math.exp(-0.3)), rel=1 / 32)
    lines, _ = watch(tmp_path, [training(100, **ALL_POSITIVE)], every_s=1)
    assert lines[0]["calibration"] is None


def test_the_end_of_an_epoch_has_a_line_within_the_second(tmp_path):
    looks = [training(100 * i, epoch=epoch) for i, epoch in enumerate((4, 4, 5, 5, 5, 5), 1)]
    lines, _ = watch(tmp_path, looks, every_s=0.3)
    ends = [(line["seconds"], line["epoch"], line["examples"]) for line in lines]
    assert ends == [(pytest.approx(0.9), 5, 300), (pytest.approx(1.8), 5, 600)]


def test_lines_of_all_events_have_the_same_columns_first_and_are_flat(tmp_path):
    results = [{"kind": "evaluate", "name": "valid", "label": "buy", "auc": 0.7, "examples": 10, "epoch": 1}]
    results += [{"kind": "evaluate", "name": "window", "auc": 0.6, "examples": 9, "files": 3}]
    lines, _ = watch(tmp_path, [training(100), training(200, results=results)], every_s=1)
    for line in lines:
        assert list(line)[: len(COLUMNS)] == list(COLUMNS)
        assert not any(isinstance(value, dict | list) for value in line.values())
    found = [line for line in lines if line["event"] == "evaluation"]
    told = [tuple(one[name] for name in ("name", "label", "auc", "evaluated", "files")) for one in found]
    assert told == [("valid", "buy", 0.7, 10, None), ("window", None, 0.6, 9, 3)]
    assert [(one["examples"], one["epoch"]) for one in found] == [(200, 1), (200, 1)]


def test_a_ranking_has_a_line_for_each_k(tmp_path):
    ranked = {"kind": "rank", "name": "test", "examples": 50, "epoch": 2, "at": [10, 20]}
    ranked |= {"recall": [0.1, 0.2], "mrr": [0.01, 0.02], "ndcg": [0.05, 0.06]}
    lines, whole = watch(tmp_path, [training(1, results=[ranked])])
    found = [line for line in lines if line["event"] == "evaluation"]
    told = [tuple(one[name] for name in ("name", "epoch", "k", "recall", "mrr", "ndcg")) for one in found]
    assert told == [("test", 2, 10, 0.1, 0.01, 0.05), ("test", 2, 20, 0.2, 0.02, 0.06)]
    assert whole["auc"] is None


def test_every_evaluation_has_a_line_at_once_and_once(tmp_path):
    first = {"kind": "test", "auc": 0.7, "logloss": 0.5, "calibration": 1.1, "examples": 10, "epoch": 1}
    second = {**first, "auc": float("nan"), "epoch": 2}
    looks = [training(1), training(2, results=[first]), training(3, results=[first, second])]
    lines, whole = watch(tmp_path, looks, every_s=0.1)
    found = [line for line in lines if line["event"] == "evaluation"]
    assert [line["auc"] for line in found] == [0.7, None]
    assert [line["seconds"] for line in found] == [0.2, 0.3]
    assert whole["logloss"] == 0.5


def test_the_summary_holds_the_figures_of_the_last_look(tmp_path):
    last = training(
        6_000, staleness_sum=30, staleness_count=20, staleness_max=4, pushes_sent=60, pushes_applied=59,
        between_sum=50, between_count=20, between_max=9,
        rows=11, parameters=22, results=[{"auc": 0.75, "logloss": 0.5}],
    )  # fmt: skip
    done = {**last, "phase": "done"}
    _, whole = watch(tmp_path, [{"phase": "waiting"}, training(0), last, done], every_s=2)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == whole
    expected = {
        "auc": 0.75, "logloss": 0.5, "examples": 6_000, "seconds": 8, "training_seconds": 4,
        "examples_per_s": 1_500, "servers": 2, "trainers": 3, "rows": 11, "parameters": 22, "pushes_sent": 60,
        "pushes_applied": 59, "staleness_mean": 1.5, "staleness_max": 4, "pushes_between_mean": 2.5,
        "pushes_between_max": 9, "seed": 7, "epochs": 1,
    }  # fmt: skip
    assert {name: whole[name] for name in expected} == expected


def test_a_run_that_was_asked_to_leave_is_not_done_in_its_last_line(tmp_path):
    """To the coordinator, whose status it is, all have left in order."""
    stream, left = io.StringIO(), {"phase": "preempted", "error": "trainer 0 was asked to leave"}
    looks = [training(10), {"phase": "done", "error": "it has left"}]
    lines, _ = watch(tmp_path, looks, every_s=1, stream=stream, progress=True, summary=left)
    assert stream.getvalue().splitlines()[-1] == "[   2.0 s] preempted"  # its error is told elsewhere
    assert lines[-1]["phase"] == "preempted"


def test_what_the_caller_knows_better_replaces_what_was_seen(tmp_path):
    _, whole = watch(tmp_path, [training(5)], summary={"auc": 0.9, "seed": 3, "note": "x"})
    assert (whole["auc"], whole["seed"], whole["note"], whole["examples"]) == (0.9, 3, "x", 5)


def test_missing_counters_are_zero(tmp_path):
    lines, whole = watch(tmp_path, [{}, {"phase": "training"}, {"unknown": 1, "rows": None}], every_s=1)
    assert [line["phase"] for line in lines] == ["waiting", "training", "waiting"]
    assert whole["examples"] == whole["rows"] == whole["staleness_mean"] == whole["examples_per_s"] == 0
    assert whole["auc"] is None


def test_a_run_that_never_began_still_ends_with_all_files(tmp_path):
    watch(tmp_path, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.png", "summary.json"]


def test_a_loss_is_of_the_examples_that_were_reported_with_it_where_more_are_known_to_be_done(tmp_path):
    looks = [(100, 100), (200, 150), (200, 200), (200, 200), (300, 150)]
    given = [training(done, loss_sum=0.5 * of, loss_examples=of) for done, of in looks]
    lines, _ = watch(tmp_path, given, every_s=1)
    assert [line["loss"] for line in lines[:5]] == [0.5, 0.5, 0.5, None, None]


def test_a_line_between_two_reports_of_trainers_shows_the_last_loss():
    stream = io.StringIO()
    looks = [training(1_000 * i, epoch=i, epochs=4, loss_sum=400, loss_examples=1_000) for i in (1, 2, 3)]
    watch(None, looks, every_s=1, stream=stream, progress=True)
    told = [line.partition("loss ")[2][:6] for line in stream.getvalue().splitlines()]
    assert told == ["0.4000", "0.4000", "0.4000"]


def test_counters_that_fall_say_nothing_until_they_grow_again(tmp_path):
    """Trainers' counters fall when a coordinator is killed: it hears of them again a second later."""
    before, after = training(1_000, **bins_of(9, 0)), training(2_000, loss_sum=700, **bins_of(9, 5))
    lines, _ = watch(tmp_path, [before, training(1_000, loss_sum=0, loss_examples=0), after], every_s=1)
    assert (lines[1]["loss"], lines[1]["auc"]) == (None, None)
    assert lines[2]["loss"] == 0.35
    assert lines[2]["auc"] > 0


def test_examples_that_are_trained_again_make_no_speed(tmp_path):
    """A coordinator that was killed knows positions in leases of seconds ago, until it hears newer ones."""
    lines, _ = watch(tmp_path, [training(count) for count in (1_000, 900, 950, 1_100, 1_300)], every_s=1)
    assert [line["examples_per_s"] for line in lines[:5]] == [1_000, 0, 0, 100, 200]


def test_each_result_is_written_once_where_only_the_last_are_told(tmp_path):
    results = [{"kind": "evaluate", "auc": 0.5 + i / 10} for i in range(4)]
    looks = [training(1, results=results[:2]), training(2, results=results[1:3], results_before=1)]
    looks += [training(3, results=results[3:], results_before=3)] * 2
    lines, _ = watch(tmp_path, looks, every_s=1)
    assert [line["auc"] for line in lines if line["event"] == "evaluation"] == [0.5, 0.6, 0.7, 0.8]


def test_a_failure_is_written_down(tmp_path):
    lines, whole = watch(tmp_path, [{"phase": "failed", "error": "server 1 was lost"}], every_s=1)
    assert lines[0]["error"] == whole["error"] == "server 1 was lost"


def test_numpy_numbers_and_arrays_are_understood(tmp_path):
    bins = {name: np.array(counts, np.uint64) for name, counts in bins_of(3, 1).items()}
    lines, _ = watch(tmp_path, [training(np.int64(8), rows=np.uint64(3), **bins)], every_s=1)
    assert lines[0]["auc"] == 0.75
    assert json.loads((tmp_path / "summary.json").read_text())["rows"] == 3


def test_lines_are_readable_while_the_run_goes_on(tmp_path):
    clock = HandClock()
    with RunRecorder(tmp_path, clock, progress=False) as run:
        clock.sleep_s(1)
        run.observe(training(5))
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["examples"] == 5


def test_a_log_gets_a_line_for_each_phase_then_one_every_ten_seconds():
    stream = io.StringIO()
    result = {
        "kind": "test",
        "auc": 0.7123,
        "logloss": 0.5,
        "calibration": 1.0,
        "examples": 1_500,
        "epoch": 1,
    }
    looks = [{"phase": "waiting"}, *[training(100 * i) for i in range(24)], training(2_400, results=[result])]
    watch(None, looks, every_s=1, stream=stream, progress=True)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[   1.0 s] waiting"
    assert [line[:35] for line in lines[1:4]] == [
        "[   2.0 s] training epoch 2/2",
        "[  12.0 s] training epoch 2/2, 1,00",
        "[  22.0 s] training epoch 2/2, 2,00",
    ]
    assert "2,000 of 10,000 examples, 100/s, ETA 1:20, loss 0.5000, AUC -, " in lines[3]
    assert lines[4] == "test after epoch 1: AUC 0.7123, log loss 0.5000, calibration 1.0000 on 1,500 examples"
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("phase", "ends"),
    [("evaluating", ["training epoch 1/1 is done", "evaluating"]), ("epoch 1 done", ["epoch 1 done"])],
)
def test_a_log_tells_speed_and_loss_at_the_end_of_a_training_shorter_than_ten_seconds(phase, ends):
    stream = io.StringIO()
    looks = [training(count, epochs=1, epoch=0, examples_total=900) for count in (0, 300, 600)]
    looks.append({**training(900, epochs=1, epoch=1, examples_total=900), "phase": phase})
    watch(None, looks, every_s=1, stream=stream, progress=True)
    first, *lines = stream.getvalue().splitlines()
    assert first.startswith("[   1.0 s] training epoch 1/1")
    assert lines[0].startswith(f"[   4.0 s] {ends[0]}, 900 of 900 examples, 300/s, ETA -, loss 0.5000, AUC ")
    assert lines[1:] == [f"[   4.0 s] {one}" for one in ends[1:]]


def test_a_dumb_terminal_gets_lines_and_no_bar(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    watch(None, [training(500)], stream=stream, progress=True)
    assert "[   0.5 s] training epoch 2/2, 500 of 10,000 examples" in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_lines_of_a_log_always_have_the_same_figures_in_the_same_order():
    stream, figures = io.StringIO(), ["/s", "ETA", "loss", "AUC", "staleness", "row", "MB out", "MB in"]
    looks = [training(1_000), training(2_000, rows=7, **bins_of(3, 1)), training(2_000, phase="saving")]
    watch(None, looks, every_s=10, stream=stream, progress=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert [re.findall("|".join(figures), line) for line in lines] == [figures] * 3


@pytest.mark.parametrize(
    ("before", "epochs", "told"),
    [
        (6_204, 2, "resumed at example 1,204 of epoch 2"),
        (5_000, 2, "resumed at example 0 of epoch 2"),
        (300, 0, "resumed at example 300"),
    ],
)
def test_a_resumed_run_says_once_where_it_begins(before, epochs, told):
    stream = io.StringIO()
    looks = [training(before + more, examples_before=before, epochs=epochs) for more in (0, 100, 200)]
    watch(None, [{"phase": "loading", "examples_before": before}, *looks], stream=stream, progress=True)
    assert [line for line in stream.getvalue().splitlines() if "resumed" in line] == [told]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (math.nan, "-"), (7.4, "0:07"), (130, "2:10"), (3_723, "1:02:03")]
)
def test_a_duration_is_written_as_on_a_clock(seconds, text):
    assert duration_text(seconds) == text


def test_a_terminal_gets_a_block_and_results_above_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    watch(None, [{}, training(2_500), training(5_000, results=[{"kind": "test", "auc": 0.7}])], stream=stream,
          progress=True, every_s=1)  # fmt: skip
    text = stream.getvalue()
    assert "waiting" in text
    assert "training epoch 2/2" in text
    assert " 25%  2,500/10,000  0:02" in text
    assert "2,500/s  ETA 0:02  loss 0.5000  AUC -  staleness 0.0" in text
    assert "test: AUC 0.7000" in text
    assert text.index("test: AUC 0.7000") < text.rindex("training epoch 2/2")


@pytest.mark.parametrize("error", ["tr[/x].parquet: bad", "peer tcp://[fe80::1]:5 is gone"])
def test_a_terminal_shows_an_error_as_it_is_and_takes_nothing_in_it_for_markup(monkeypatch, error):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    watch(None, [training(10, phase="failed", error=error)], stream=stream, progress=True, every_s=1)
    assert f"failed: {error}" in stream.getvalue()


def test_a_launch_whose_metrics_cannot_be_read_is_left_out_of_the_picture(tmp_path):
    """Bytes that are no UTF-8 spoil their line alone, a folder in the place of a file the whole launch."""
    (tmp_path / "metrics-0.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "metrics-1.jsonl").mkdir()
    stream = io.StringIO()
    earlier = [tmp_path / "metrics-0.jsonl", tmp_path / "metrics-1.jsonl"]
    run = RunRecorder(tmp_path, HandClock(), progress=False, stream=stream, earlier=earlier)
    run.observe(training(500, phase="done"))
    run.finish({})
    assert (tmp_path / "run.png").exists()
    assert stream.getvalue() == ""


def test_the_last_line_has_the_loss_and_auc_that_came_with_the_end_and_the_speed_of_before():
    stream, clock = io.StringIO(), HandClock()
    run = RunRecorder(None, clock, progress=True, stream=stream)
    for look, after_s in (
        (training(500, loss_sum=0, loss_examples=0), 1.0),
        (training(500, **bins_of(3, 1)), 0.1),
    ):
        clock.sleep_s(after_s)
        run.observe(look | {"phase": "saving"})
    run.observe(training(500, **bins_of(3, 1), phase="done"))
    run.finish({})
    first, *_, last = stream.getvalue().splitlines()
    assert "saving, 500 of 10,000 examples, -/s, ETA -, loss -, AUC -, staleness" in first
    assert "done, 500 of 10,000 examples, 500/s, ETA -, loss 0.5000, AUC 0.7500" in last


ALL_POSITIVE = {"bins_positive": bins_of(3, 0)["bins_positive"]}


@pytest.mark.parametrize(("bins", "auc"), [({}, []), (ALL_POSITIVE, []), (bins_of(3, 1), ["AUC"])])
def test_a_run_whose_model_predicts_no_clicks_shows_no_auc(tmp_path, monkeypatch, bins, auc):
    figures = []
    monkeypatch.setattr(recorder, "picture", lambda *given: figures.append(picture(*given)) or figures[-1])
    stream = io.StringIO()
    watch(tmp_path, [training(500, **bins), training(900, **bins)], every_s=1, stream=stream, progress=True)
    assert ("AUC -" in stream.getvalue()) != bool(auc)
    (figure,) = figures
    assert [axes.get_ylabel()[:3] for axes in figure.axes] == [
        "log" if auc else "los",
        *auc,
        "exa",
    ]


def test_a_line_tells_how_much_of_the_memory_limit_is_taken():
    stream = io.StringIO()
    limited = {"rows": 7_000, "memory_bytes": 13_800_000, "memory_limit_bytes": 16_000_000}
    watch(None, [training(2_500, **limited)], every_s=1, stream=stream, progress=True)
    assert "7,000 rows in 14 of 16 MB, " in stream.getvalue()
    limited["memory_limit_bytes"] = 0
    watch(None, [training(2_500, **limited)], every_s=1, stream=(plain := io.StringIO()), progress=True)
    assert "7,000 rows, " in plain.getvalue()


def test_without_progress_nothing_is_shown():
    stream = Terminal()
    watch(None, [training(5)], stream=stream)
    assert stream.getvalue() == ""


def test_without_a_folder_no_file_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, whole = watch(None, [training(5)])
    assert whole["examples"] == 5
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_one_line_says_how_to_get_the_picture(tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    stream = io.StringIO()
    watch(tmp_path, [training(5)], stream=stream)
    assert stream.getvalue() == (
        "no run.png: matplotlib is not installed; `pip install matplotlib` brings it\n"
    )
    assert (tmp_path / "summary.json").exists()
    assert not (tmp_path / "run.png").exists()


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), AttributeError("np"), OSError("no fonts")])
def test_a_picture_that_fails_is_a_line_and_the_run_is_done(tmp_path, monkeypatch, error):
    monkeypatch.setattr(recorder, "picture", mock.Mock(side_effect=error))
    stream = io.StringIO()
    watch(tmp_path, [training(5)], stream=stream)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith(f"no run.png: {type(error).__name__}: {str(error).splitlines()[0]}; `pip install")
    assert (tmp_path / "summary.json").exists()


def test_the_picture_is_a_png_of_a_readable_size(tmp_path):
    watch(tmp_path, [training(i * 1_000, **bins_of(i, 1)) for i in range(40)], every_s=1)
    head = (tmp_path / "run.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[16:20], "big") >= 800


def test_a_long_run_keeps_a_bounded_number_of_points(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "RECORDS_MAX", 8)
    clock = HandClock()
    run = RunRecorder(None, clock, progress=False)
    for i in range(100):
        clock.sleep_s(1)
        run.observe(training(i))
        assert len(run._history) <= 8
    assert run._history.records[-1].seconds >= 100 - run._history.every_s
    assert run._history.records[-1].loss == 0.5


def test_a_disk_that_is_full_ends_the_lines_and_not_the_run(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    run = RunRecorder(tmp_path, HandClock(), progress=False)
    run.observe(training(100))
    for examples in (200, 300):
        run._clock.sleep_s(2.0)
        run.observe(training(examples))
    assert run.finish({"seed": 7})["examples"] == 300
    assert json.loads((tmp_path / "summary.json").read_text())["examples"] == 300
    (line,) = [one.getMessage() for one in caplog.records if one.name.startswith("pslib.")]
    assert line == f"pslib: {tmp_path}/metrics.jsonl: No space left on device; it ends here, the run goes on"


def test_a_script_whose_records_find_no_space_ends_with_its_results_and_a_line(tmp_path, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder, "atomic_output", full)
    with pslib.connect() as cluster:
        settings = TrainerSettings(out=tmp_path, progress=False, seed=1)
        record(cluster, settings, CountingModel(), cluster)
    (line,) = [
        one.getMessage()
        for one in caplog.records
        if one.name.startswith("pslib.") and "space" in one.getMessage()
    ]
    assert line == f"pslib: {tmp_path}: No space left on device; its records are not all there"


@pytest.mark.parametrize("phase", ["evaluating", "saving", "waiting for 2 servers to leave"])
def test_a_run_that_trains_nothing_just_now_tells_no_speed_and_no_loss(phase):
    """Its last second may hold the end of the training, all that was known late of it included."""
    stream = io.StringIO()
    looks = [training(1_000, rows=50), training(9_000, rows=50, phase=phase)]
    watch(None, looks, every_s=1, stream=stream, progress=True, summary={"phase": "done"})
    lines = stream.getvalue().splitlines()
    ended = "9,000 of 10,000 examples, 8,000/s, ETA 0:00, loss 0.5000, "
    assert f"training epoch 2/2 is done, {ended}" in lines[1]
    assert lines[2] == f"[   2.0 s] {phase}"
    assert "done, 9,000 of 10,000 examples, 8,000/s, ETA 0:00, loss 0.5000, " in lines[-1]


def test_rows_that_no_server_has_told_of_yet_are_not_told_as_none():
    stream = io.StringIO()
    watch(None, [training(1_000, memory_limit_bytes=8)], every_s=1, stream=stream, progress=True)
    assert "staleness 0.0, - rows, 0 MB out" in stream.getvalue()
