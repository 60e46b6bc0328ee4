"""Lines that a launched process writes to its own log alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from launch.worker.log_lines import LOG, Entry, Origin, log_text, read_lines, sent_line, shown_lines
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

DEEP = "[" * 60_000
"""JSON that no reader of it gets to the end of."""


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
    chatter = f"say {sent_line(Entry('matrices', logger='pslib.model', to=LOG))};" * 50
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
        (sent_line(Entry("7 moves", to=LOG, logger="pslib.server")), "info", "7 moves"),
        ("pslib-started 12 vm", "message", "pslib-started 12 vm"),
        ("pslib: waiting 5 s", "warning", "waiting 5 s"),
        ("Traceback (most recent call last):", "output", "Traceback (most recent call last):"),
        ("pslib-log of mine", "output", "pslib-log of mine"),
        ('pslib-log {"message": 3}', "output", 'pslib-log {"message": 3}'),
        ('pslib-log {"massage": "a"}', "output", 'pslib-log {"massage": "a"}'),
        pytest.param(f"pslib-log {DEEP}", "output", f"pslib-log {DEEP}", id="deep"),
        ("", "output", ""),
    ],
)
def test_a_line_of_a_log_has_its_time_its_level_and_its_process(said: str, level: str, text: str) -> None:
    (entry,) = read_lines(said)
    match = LINE.fullmatch(log_text(entry, Origin("server", 1), as_json=False).removesuffix("\n"))
    assert match is not None
    assert (match["level"], match["process"], match["text"]) == (level, "server-1", text)


ENTRIES = [
    Entry("one"),
    Entry("10%\r20% a\u2028b\x0cc \u00e9 \U0001f600 \x00\x1b[1m"),
    Entry("bytes of a name: \udcff"),
    Entry("two\n  lines", "warning", "pslib.client.endpoint"),
    Entry("pslib-started 7 vm", "debug", "pslib.message"),
    Entry("ValueError: a\nb", "error", "output", "Traceback:\n  here\nValueError: a\nb\n"),
    Entry("it has died", "error", "pslib.server.embedded", "Traceback:\nKeyError: 3\n"),
    Entry('{"time": 1}'),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_line_of_json_is_shown_to_people_as_the_text_that_it_would_have_been(entry: Entry) -> None:
    origin = Origin("trainer", 3, "5f3a91c0")
    as_json = log_text(entry, origin, as_json=True)
    assert as_json.endswith("\n")
    assert as_json.isascii()
    assert len(as_json.splitlines()) == 1
    plain = json.loads(as_json)
    assert list(plain) == ["time", "level", "logger", "role", "rank", "run", "message", "exception"]
    assert (plain["role"], plain["rank"], plain["run"]) == ("trainer", 3, "5f3a91c0")
    assert plain["message"].encode().decode() == plain["message"]  # valid for strict readers, too
    text = log_text(entry, origin, as_json=False).removesuffix("\n").split("\n")
    of_json = list(shown_lines(as_json.removesuffix("\n")))
    assert [line.split(" ", 1)[1] for line in of_json] == [line.split(" ", 1)[1] for line in text]
    assert {line.split(" ", 1)[0] for line in of_json} == {plain["time"]}


@pytest.mark.parametrize(
    "line",
    ["{", "{}", '{"time": 1}', "T1 info server-0 {}", "[1]", "", pytest.param(f'{{"a": {DEEP}', id="deep")],
)
def test_a_line_that_is_no_record_of_ours_is_shown_as_it_is(line: str) -> None:
    assert list(shown_lines(line)) == [line]


def test_a_record_behind_a_bar_without_line_end_is_still_one() -> None:
    record = Entry("7 moves", to=LOG, logger="pslib.server")
    assert read_lines(f" 10%|###   |\r{sent_line(record)}") == [Entry(" 10%|###   |"), record]


PROGRAM = """
import logging, sys
log = logging.getLogger("pslib.client.endpoint")
if sys.argv[1] == "launched":
    from launch.worker.log_records import send_records
    send_records()
    send_records()
{setting_up}
log.info("pslib: %d moves", 7)
log.info("pslib: two lines\\n  of an error")
log.warning("pslib: full")
log.error("pslib: broken")
log.error("pslib: %d", "no number") if sys.argv[1] == "launched" else None
logging.getLogger("mine").warning("of the script")
"""


@pytest.mark.parametrize(
    ("setting_up", "expected"),
    [
        ("", ["info 7 moves", "info two lines\n  of an error", "warning full"]),
        ("logging.basicConfig(format='mine: %(message)s')", ["info 7 moves", "mine: pslib: full"]),
        ("logging.basicConfig(level='INFO')", ["info 7 moves", "INFO:pslib.client.endpoint:pslib: 7 moves"]),
        (
            "logging.getLogger('pslib').setLevel('INFO'); logging.basicConfig()",
            ["info 7 moves", "INFO:pslib.client.endpoint:pslib: 7 moves"],
        ),
        ("logging.getLogger('pslib').setLevel('ERROR')", ["error broken"]),
        ("logging.getLogger('pslib').addHandler(logging.NullHandler())", ["info 7 moves", "warning full"]),
    ],
)
def test_warnings_and_a_scripts_own_logging_are_as_they_are_without(
    setting_up: str, expected: list[str]
) -> None:
    program = PROGRAM.format(setting_up=setting_up)
    said = {
        how: subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, timeout=60, check=True
        ).stderr.split("--- Logging error ---")[0]
        for how in ("launched", "alone")
    }
    entries = [entry for line in said["launched"].splitlines() for entry in read_lines(line)]
    alone = said["alone"].splitlines()
    assert [line for entry in entries for line in entry.printed] == [
        line for line in alone if "of the script" not in line
    ]
    records = [f"{entry.level} {entry.message}" for entry in entries if entry.logger.startswith("pslib.")]
    others = [entry.message for entry in entries if entry.logger == "output"]
    assert [line for line in expected if line not in records + others] == []


@pytest.mark.parametrize("module", ["pslib", "rec_models"])
def test_without_a_launcher_nothing_is_set_up_in_logging(module: str) -> None:
    program = f"""
import logging
import {module}
log = logging.getLogger("pslib")
print(log.handlers, log.level, log.propagate, logging.getLogger().handlers)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("[] 0 True []\n", "")
