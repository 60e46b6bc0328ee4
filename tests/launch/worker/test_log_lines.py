"""Lines that a launched process writes to its own log alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from launch.worker.log_lines import log_line
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.processes.standin_launch import run_standins

LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>\w+) +(?P<process>\S+) (?P<text>.*)"
)
SCRIPT = """\
import logging
import pslib
from rec_models import LR
from pslib.data.synthetic.generator import GeneratorConfig, generated_schema
logging.basicConfig(format="mine: %(message)s")
with pslib.connect() as cluster:
    pslib.Trainer(LR(generated_schema(GeneratorConfig())), cluster, batch_rows=512).fit("train.parquet")
print("trained")
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a little data, and the folder that runs are started in."""
    generate(tmp_path, GeneratorConfig(train_rows=2000, test_rows=500))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_log_of_a_trainer_says_with_what_it_multiplies_matrices_and_the_screen_does_not(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "job.yaml").write_text(write_yaml(demo_job(".", "run")))
    assert main(["train", "job.yaml", "--quiet", "--set", "training.compute_threads=1"]) == 0
    for trainer in (0, 1):
        lines = (data / "run" / "logs" / f"trainer-{trainer}.log").read_text().splitlines()
        texts = [LINE.fullmatch(line) for line in lines]
        assert all(texts), lines
        assert {text["process"] for text in texts} == {f"trainer-{trainer}"}
        assert {text["level"] for text in texts} == {"info", "message"}
        said = [text["text"] for text in texts if "matrix products by " in text["text"]]
        assert said[0].startswith("1 compute thread(s); matrix products by ")
        assert said[0].endswith(", 1 thread")
    screen = capfd.readouterr()
    assert "matrix products" not in screen.out + screen.err
    assert screen.err == ""


def test_a_launched_script_shows_what_it_prints_and_none_of_it_even_where_it_sets_logging_up(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "script.py").write_text(SCRIPT)
    assert main(["launch", "--quiet", "--out", "run", "script.py"]) == 0
    assert capfd.readouterr().out == "trained\n"
    assert "matrix products by" in (data / "run" / "logs" / "trainer-0.log").read_text()


def test_lines_for_the_log_neither_reach_the_screen_nor_hide_what_a_process_said_of_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chatter = "say pslib-log matrices;" * 50
    outcome, said = run_standins(
        tmp_path, {"trainer": f"say hello;say ZeroDivisionError;{chatter}exit 1"}, echo=True
    )
    assert "ended with exit code 1: ZeroDivisionError" in said[0]
    assert capfd.readouterr().out == "hello\nZeroDivisionError\n"
    assert (tmp_path / "logs" / "trainer-0.log").read_text().count("info    trainer-0 matrices") == 50
    assert outcome.exit_code == 1


@pytest.mark.parametrize(
    ("said", "level", "text"),
    [
        ("pslib-log 7 moves", "info", "7 moves"),
        ("pslib-started 12 vm", "message", "pslib-started 12 vm"),
        ("pslib: waiting 5 s", "warning", "pslib: waiting 5 s"),
        ("Traceback (most recent call last):", "output", "Traceback (most recent call last):"),
        ("", "output", ""),
    ],
)
def test_a_line_of_a_log_has_its_time_its_level_and_its_process(said: str, level: str, text: str) -> None:
    match = LINE.fullmatch(log_line(said, "server-1"))
    assert match is not None
    assert (match["level"], match["process"], match["text"]) == (level, "server-1", text)


@pytest.mark.parametrize(
    ("setting_up", "expected"),
    [
        ("", ["pslib-log 7 moves", "pslib-log two lines", "pslib: full"]),
        ("logging.basicConfig(format='mine: %(message)s')", ["pslib-log 7 moves", "mine: pslib: full"]),
        ("logging.basicConfig(level='INFO')", ["pslib-log 7 moves", "INFO:pslib:pslib: 7 moves"]),
        ("log.setLevel('INFO'); logging.basicConfig()", ["pslib-log 7 moves", "INFO:pslib:pslib: 7 moves"]),
        ("log.setLevel('ERROR')", ["pslib: broken"]),
    ],
)
def test_warnings_and_a_scripts_own_logging_are_as_they_are_without(
    setting_up: str, expected: list[str]
) -> None:
    program = f"""
import logging, sys
log = logging.getLogger("pslib")
if sys.argv[1] == "launched":
    from launch.worker.log_lines import write_log_lines
    write_log_lines()
    write_log_lines()
{setting_up}
log.info("pslib: %d moves", 7)
log.info("pslib: two lines\\n  of an error")
log.warning("pslib: full")
log.error("pslib: broken")
"""
    said = {
        how: subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, timeout=60, check=True
        ).stderr.splitlines()
        for how in ("launched", "alone")
    }
    ours = [line for line in said["launched"] if line.startswith("pslib-log")]
    others = [line for line in said["launched"] if not line.startswith("pslib-log")]
    assert others == said["alone"]
    assert not any(line.startswith("pslib-log") for line in said["alone"])
    assert ours in (["pslib-log 7 moves", "pslib-log two lines", "pslib-log   of an error"], [])
    assert [line for line in expected if line not in said["launched"]] == []
