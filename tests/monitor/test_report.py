"""Report of runs: what the file says, and that nothing of a run becomes a part of the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from pslib.metrics.paired import Difference
from pslib.monitor.report import Comparison, ReportedRun, differing_settings, page
from pslib.recorder.records import EVALUATION, PROGRESS, Record
from pslib.recorder.svg_charts import Curve, chart, panels

BAD = '<script>alert("x")</script>'


class Parts(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def trained(examples: int, **figures: Any) -> Record:
    return Record(event=PROGRESS, seconds=examples / 100, epoch=0, examples=examples, **figures)


def evaluated(name: str, **figures: Any) -> Record:
    return Record(event=EVALUATION, seconds=9.0, epoch=1, examples=300, name=name, **figures)


def run(name: str = "a", **about: Any) -> ReportedRun:
    known: dict[str, Any] = {
        "folder": f"/runs/{name}",
        "state": "done",
        "records": [trained(100, loss=0.5, auc=0.6), trained(200, loss=0.4, auc=0.7)],
        "summary": {"model": "deepfm", "auc": 0.75, "examples": 200, "environment": {"python": "3.12.1"}},
        "settings": {"training.seed": "1", "out": f"/runs/{name}", "checkpoint.path": f"/runs/{name}/c"},
        "monitor": {},
    }
    return ReportedRun(name=name, **known | about)


def test_a_page_loads_nothing_and_has_no_script() -> None:
    parts = Parts(page([run()]))
    assert not {"script", "link", "img", "iframe", "object"} & set(parts.tags)
    assert not [value for name, value in parts.attributes if name.startswith("on") or name in ("src", "href")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in parts.attributes


def test_a_script_in_any_text_of_a_run_is_shown_as_text() -> None:
    bad = run(
        name=BAD,
        folder=BAD,
        state=BAD,
        records=[trained(100, loss=0.5), evaluated(BAD, auc=0.5, label=BAD)],
        summary={"model": BAD, "error": BAD, "environment": {BAD: BAD}, "recall": {BAD: 0.5}},
        settings={f"data.schema.sparse.{BAD}": BAD},
        monitor={"events": [{"text": BAD, "kind": BAD}], "checkpoints": [{"path": BAD, "bytes": BAD}]},
    )
    difference = Difference(0.1, 0.05, 0.15)
    text = page([bad, run("b")], [Comparison(BAD, difference, difference, 9)], [BAD])
    parts = Parts(text)
    assert "script" not in parts.tags
    assert "<script" not in text
    assert "".join(parts.texts).count(BAD) >= 15


def test_the_summary_has_figures_with_units_and_a_dash_for_those_that_are_unknown() -> None:
    text = page([run(summary={"seconds": 75, "memory_bytes": 2_500_000, "calibration": None, "auc": 0.8})])
    for cell in ("1:15", "2.5 MB", "0.8000"):
        assert f"<td>{cell}</td>" in text
    assert "calibration" not in text.partition("Charts")[0]


def test_figures_of_a_summary_that_pslib_has_not_written_are_shown_as_they_are() -> None:
    text = page(
        [run(summary={"recall": {"20": "many"}, "ndcg": 5, "memory_bytes": "many"}), run("b", summary={})]
    )
    for row in ("recall at 20</th><td>many</td><td>-</td>", "tables</th><td>many</td><td>-</td>"):
        assert row in text
    assert "ndcg" not in text


@pytest.mark.parametrize("records", [[], [trained(0)]])
def test_a_run_without_a_record_yet_says_so(records: list[Record]) -> None:
    text = page([run(state="running", summary={}, records=records, settings={})])
    assert "There is no record of the training yet." in text
    assert "running" in text


def test_a_run_that_goes_on_shows_what_its_last_record_says() -> None:
    assert "<th scope=row>examples</th><td>200</td>" in page([run(state="running", summary={})])


def test_a_run_that_failed_shows_its_error() -> None:
    text = page([run(state="failed", summary={"error": "server 1 was killed", "exit_code": 69})])
    assert '<b class="error">server 1 was killed</b>' in text


def test_of_several_runs_the_settings_that_differ_are_told_but_not_their_own_places() -> None:
    other = run(
        "b", settings={"training.seed": "2", "out": "/runs/b", "checkpoint.path": "/runs/b/c", "x": "1"}
    )
    assert differing_settings([run(), other]) == {"training.seed": ["1", "2"], "x": ["-", "1"]}
    assert "No setting differs." in page([run(), run("b")])
    assert "Settings are not recorded: c." in page([run(), run("c", settings={})])


def test_of_a_script_and_a_job_only_settings_that_both_know_differ() -> None:
    job = run(settings={"training.seed": "1", "training.epochs": "2", "model.name": "deepfm"})
    script = run("b", settings={"training.seed": "2", "model.name": "deepfm", "load": "x"}, of_script=True)
    assert differing_settings([job, script]) == {"training.seed": ["1", "2"]}
    assert page([job, script]).count('class="differs"') == 1


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.001, 0.003, "better"), (-0.003, -0.001, "worse"), (-0.001, 0.003, "no difference shown")],
)
def test_a_difference_says_what_its_interval_allows(low: float, high: float, verdict: str) -> None:
    compared = Comparison("b", Difference((low + high) / 2, low, high), Difference(0, 0, 0), 1000)
    text = page([run(), run("b")], [compared])
    assert f"<td>{low:+.5f} to {high:+.5f}</td>" in text
    assert f"<td>{verdict}</td>" in text


def test_events_and_checkpoints_of_the_monitor_are_tables() -> None:
    event = {
        "number": 1,
        "at_s": 1_790_000_000.0,
        "kind": "lost",
        "role": "server",
        "rank": 1,
        "text": "killed",
    }
    saved = {
        "at_s": 1_790_000_000.0,
        "path": "c",
        "kind": "full",
        "bytes": 3e6,
        "took_s": 0.5,
        "pause_s": 0.002,
    }
    text = page([run(monitor={"events": [event], "checkpoints": [saved]})])
    for cell in (">UTC<", ">path<", ">took<", "2026-09-21", "server", "killed", "3.0 MB", "0.50 s", "2.0 ms"):
        assert cell in text


# --- charts


def test_runs_are_drawn_on_top_of_each_other_in_their_own_colours() -> None:
    drawn = panels([("a", run().records), ("b", [*run().records, evaluated("test", auc=0.8)])])
    assert list(drawn) == ["loss", "AUC"]
    assert [curve.name for curve in drawn["AUC"]] == ["a", "b", "b, test"]
    first, second, dots = drawn["AUC"]
    assert first.colour != second.colour == dots.colour
    assert (dots.marks, dots.points) == (True, [(300.0, 0.8)])


def test_records_of_a_run_that_waits_are_no_points() -> None:
    records = [trained(100, examples_per_s=50.0), trained(200, examples_per_s=60.0)]
    drawn = panels([("a", [*records, trained(200, examples_per_s=0.0)])])
    assert drawn["examples/s"][0].points == [(100.0, 50.0), (200.0, 60.0)]


def test_a_chart_is_valid_svg_with_a_title_and_round_ticks() -> None:
    text = chart("AUC", [Curve("a & b", [(0.0, 0.512), (1e6, 0.793)], "#123456")])
    root = ET.fromstring(text)
    told = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert {"0.5", "0.8", "0", "1.0M"} <= set(told)
    assert root[0].text == "AUC over examples: a & b"


@pytest.mark.parametrize("points", [[(0.0, 0.0)], [(5.0, -2.0), (5.0, -2.0)], [(0.0, 1e-12), (1.0, 1e12)]])
def test_a_chart_of_few_or_equal_or_far_values_is_drawn(points: list[tuple[float, float]]) -> None:
    root = ET.fromstring(chart("loss", [Curve("a", points, "red")]))
    assert "nan" not in ET.tostring(root, "unicode")


def test_examples_that_are_trained_again_begin_another_line() -> None:
    text = chart("loss", [Curve("a", [(1.0, 1.0), (2.0, 2.0), (1.0, 1.5), (3.0, 1.0)], "red")])
    assert text.count('stroke="red"') == 2


def test_a_long_curve_keeps_its_peaks_in_few_points() -> None:
    points = [(float(x), 2.0 if x == 5_555 else 1.0) for x in range(10_000)]
    text = chart("examples/s", [Curve("a", points, "red")])
    assert text.count("L") < 600
    assert f" {30.0:.1f}L" in text, "the peak is at the top"


def test_an_outlier_of_a_line_does_not_squeeze_the_others_but_a_mark_is_always_in() -> None:
    line = [(float(x), 1.0 + x / 1000) for x in range(100)]
    squeezed = Curve("a", [(0.0, 50.0), *line], "red")
    assert ">1.1<" in chart("calibration", [squeezed]) or ">1.10<" in chart("calibration", [squeezed])
    assert ">50<" in chart("calibration", [squeezed, Curve("b", [(99.0, 50.0)], "red", marks=True)])
