"""Metrics for Prometheus: names, values, labels, and the page, dashboard and alerts that name them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from math import nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from launch.cli.main import main
from pslib.monitor.prometheus import (
    LABELS,
    ROLES,
    Exposition,
    file_text,
    metric_name,
    metrics_of,
    metrics_section,
)
from pslib.process.reported import Reported, Reporter

REPOSITORY = Path(__file__).resolve().parents[2]
SERVER = Reporter("server", 1, "run-7", "1f")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool (Debian: prometheus); that each rule and chart names metrics that exist is tested "
    "without it",
)


def promtool(*words: str, folder: Path | None = None, text: str = "") -> str:
    """Run promtool, which must find no fault; return what it says."""
    found = subprocess.run(
        ["promtool", *words], cwd=folder, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def values_of(role: str) -> dict[str, Any]:
    """A sound value of each counter of a role."""
    counters = ROLES[role]
    return {one.name: [2] * (len(one.bounds) + 1) if one.bounds else 3 for one in counters}


def text_of(*members: tuple[Reporter, dict[str, Any]]) -> str:
    reported = Reported()
    for reporter, counters in members:
        reported.show(reporter, counters)
    return Exposition(reported).text().decode()


def samples(text: str) -> dict[tuple[str, str], float]:
    """Value by name of a series and its incarnation."""
    return {
        (sample.name, sample.labels["incarnation"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


@pytest.mark.parametrize("role", ROLES)
def test_each_counter_of_a_role_is_a_metric_with_all_labels(role: str) -> None:
    text = text_of((Reporter(role, 3, "run-7", "1f"), values_of(role)))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for counter in metrics_of(role):
        family = families[metric_name(counter).removesuffix("_total")]
        assert family.type == counter.kind
        assert family.documentation == counter.help
        assert set(LABELS) <= set(family.samples[0].labels)
        assert family.samples[0].labels["rank"] == "3"


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("read_s", "pslib_read_seconds_total"),
        ("bytes_sent", "pslib_sent_bytes_total"),
        ("memory_bytes", "pslib_memory_bytes"),
        ("ack_counts", "pslib_push_acknowledgement_seconds"),
        ("hot_share", "pslib_hot_ratio"),
    ],
)
def test_a_metric_is_named_with_its_base_unit(name: str, metric: str) -> None:
    counter = next(one for counters in ROLES.values() for one in counters if one.name == name)
    assert metric_name(counter) == metric


def test_buckets_of_a_histogram_add_up() -> None:
    counters = {"request_counts": [1, 2, 3, *[0] * 17], "request_s": 0.25}
    family = next(iter(text_string_to_metric_families(text_of((SERVER, counters)))))
    assert [one.value for one in family.samples if one.name.endswith("_bucket")][:4] == [1, 3, 6, 6]
    told = {one.name: one.value for one in family.samples}
    assert told["pslib_request_duration_seconds_count"] == 6
    assert told["pslib_request_duration_seconds_sum"] == 0.25


def test_what_is_missing_or_unsound_is_no_metric() -> None:
    text = text_of((SERVER, {"rows": "many", "busy_s": nan, "request_counts": [1], "memory_bytes": 7}))
    assert set(samples(text)) == {("pslib_memory_bytes", "1f")}


def test_a_successor_has_series_of_its_own() -> None:
    text = text_of((SERVER, {"requests": 900}), (Reporter("server", 1, "run-7", "2a"), {"requests": 4}))
    told = samples(text)
    assert told["pslib_requests_total", "1f"] == 900
    assert told["pslib_requests_total", "2a"] == 4


def test_a_counter_that_falls_within_a_process_goes_on_from_what_it_had() -> None:
    """Those of tables do when a checkpoint is loaded in their place."""
    reported = Reported()
    exposition = Exposition(reported)
    seen = []
    for admitted in (5, 7, 2, 4, 1):
        reported.show(SERVER, {"admitted": admitted})
        seen.append(samples(exposition.text().decode())["pslib_admitted_total", "1f"])
    assert seen == [5, 7, 9, 11, 12]


def test_scrapes_at_the_same_time_count_no_fall() -> None:
    reported = Reported()
    exposition = Exposition(reported)
    later = threading.Thread(target=exposition.text)

    class Read(dict[str, Any]):
        def get(self, name: str, _default: Any = None) -> Any:
            if name == "requests" and not later.ident:
                reported.show(SERVER, {"requests": 9})
                later.start()
                later.join(0.5)  # passes this one, or waits for it
            return super().get(name)

    reported.show(SERVER, Read(requests=5))
    exposition.text()
    later.join()
    assert samples(exposition.text().decode())["pslib_requests_total", "1f"] == 9


def test_a_member_that_has_left_has_no_series() -> None:
    reported = Reported()
    exposition = Exposition(reported)
    reported.show(SERVER, {"requests": 900})
    reported.forget(SERVER)
    assert exposition.text() == b""
    assert reported.wanted


def test_the_reference_page_has_the_section_that_the_code_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "page", "metrics"]) == 0
    written = capsys.readouterr().out
    assert written == metrics_section()
    assert (REPOSITORY / "docs/reference/metrics.md").read_text().endswith(f"\n\n{written}")


# --- dashboard and alerts ---

NAMES = re.compile(r"\bpslib_[a-z0-9_]+")


def expressions(found: object) -> list[str]:
    """All queries in a dashboard or in alert rules."""
    if isinstance(found, dict):
        own = [str(value) for key, value in found.items() if key in ("expr", "query")]
        return own + [text for value in found.values() for text in expressions(value)]
    return [text for value in found for text in expressions(value)] if isinstance(found, list) else []


@pytest.mark.parametrize("name", ["grafana_dashboard.json", "alert_rules.yaml"])
def test_every_metric_that_a_file_names_exists(name: str) -> None:
    queries = expressions(yaml.safe_load(file_text(name)))
    named = {metric for query in queries for metric in NAMES.findall(query)}
    assert len(named) > 4
    series = set()
    for one in (one for role in ROLES for one in metrics_of(role)):
        metric = metric_name(one)
        series |= {f"{metric}_{part}" for part in ("bucket", "sum", "count")} if one.bounds else {metric}
    assert named <= series


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(file_text("grafana_dashboard.json"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize(
    ("which", "name"), [("dashboard", "grafana_dashboard.json"), ("alerts", "alert_rules.yaml")]
)
def test_the_command_prints_the_files(which: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "page", which]) == 0
    assert capsys.readouterr().out == file_text(name)


@needs_promtool
def test_promtool_finds_no_fault_with_the_metrics() -> None:
    text = text_of(*((Reporter(role, 0, "run-7", "1f"), values_of(role)) for role in ROLES))
    assert promtool("check", "metrics", text=text) == ""


@needs_promtool
def test_promtool_finds_no_fault_with_the_alerts(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(file_text("alert_rules.yaml"))
    assert "5 rules found" in promtool("check", "rules", "rules.yaml", folder=tmp_path)


ACKS = 'pslib_push_acknowledgement_seconds_count{role="trainer",rank="0",run="a"}'
OF_COORDINATOR = '{role="coordinator",rank="0",run="a"}'


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "series", "fires_at"),
    [
        ("PslibNoAcknowledgement", {ACKS: "0+60x5 300x5", f"pslib_training{OF_COORDINATOR}": "1x10"}, (7, 4)),
        ("PslibServerLost", {f"pslib_lost_servers{OF_COORDINATOR}": "0x5 1x5"}, (8, 5)),
        (
            "PslibImbalance",
            {
                'pslib_memory_bytes{role="server",rank="0",run="a"}': "100x5 300x30",
                'pslib_memory_bytes{role="server",rank="1",run="a"}': "100x35",
            },
            None,
        ),
        (
            "PslibImbalance",
            {
                'pslib_memory_bytes{role="server",rank="0",run="a"}': "100x5 400x30",
                'pslib_memory_bytes{role="server",rank="1",run="a"}': "100x35",
            },
            (20, 12),
        ),
        ("PslibCheckpointTooOld", {f"pslib_checkpoint_timestamp_seconds{OF_COORDINATOR}": "0x90"}, (65, 59)),
        (
            "PslibMemoryNearLimit",
            {
                'pslib_memory_bytes{role="server",rank="0",run="a"}': "80x5 95x5",
                'pslib_memory_limit_bytes{role="server",rank="0",run="a"}': "100x10",
            },
            (8, 5),
        ),
        (
            "PslibMemoryNearLimit",
            {
                'pslib_memory_bytes{role="server",rank="0",run="a"}': "95x10",
                'pslib_memory_limit_bytes{role="server",rank="0",run="a"}': "0x10",
            },
            None,
        ),
    ],
)
def test_an_alert_fires_when_it_should_and_not_before(
    alert: str, series: dict[str, str], fires_at: tuple[int, int] | None, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(file_text("alert_rules.yaml"))
    rule = next(
        one
        for one in yaml.safe_load(file_text("alert_rules.yaml"))["groups"][0]["rules"]
        if one["alert"] == alert
    )
    fires, quiet = fires_at or (None, 10)
    firing = f"count(ALERTS{{alertname='{alert}',alertstate='firing'}})"
    checks = [{"expr": firing, "eval_time": f"{quiet}m", "exp_samples": []}]
    if fires is not None:
        checks.append({"expr": firing, "eval_time": f"{fires}m", "exp_samples": [{"value": 1}]})
    plain = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": checks,
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(plain))
    promtool("test", "rules", "test.yaml", folder=tmp_path)
    assert rule["labels"]["severity"] in ("critical", "warning")


@needs_promtool
def test_promtool_takes_the_configuration_of_the_guide(tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs/guide/operate.md").read_text().split("## Prometheus\n")[1]
    (configuration,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yaml").write_text(configuration)
    (tmp_path / "alert_rules.yaml").write_text(file_text("alert_rules.yaml"))
    promtool("check", "config", "prometheus.yaml", folder=tmp_path)
