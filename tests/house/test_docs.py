"""Pages that people read say only what is there: links, names, commands, and code that runs."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from pslib.wire.codec import PROTOCOL_VERSION

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not {".venv", "build", "runs", "node_modules"} & set(page.relative_to(ROOT).parts)
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
OVERVIEW = ROOT / "docs" / "design" / "overview.md"
FILE_TABLES = {
    "launch/calibration": "launcher.md",
    "launch/cli": "launcher.md",
    "launch/job": "launcher.md",
    "launch/places": "launcher.md",
    "launch/runs": "launcher.md",
    "launch/supervisor": "launcher.md",
    "launch/worker": "launcher.md",
    "pslib/checkpoint": "checkpoint.md",
    "pslib/client": "wire.md",
    "pslib/coordinator": "wire.md",
    "pslib/server": "wire.md",
    "pslib/wire": "wire.md",
    "pslib/update_log": "log.md",
    "pslib/data": "trainer.md",
    "pslib/data/convert": "trainer.md",
    "pslib/data/inspect": "trainer.md",
    "pslib/data/synthetic": "trainer.md",
    "pslib/scoring": "trainer.md",
    "pslib/monitor": "trainer.md",
    "pslib/recorder": "trainer.md",
    "pslib/trainer": "trainer.md",
    "pslib/trainer/pipeline": "trainer.md",
    "pslib/trainer/consistency": "trainer.md",
    "pslib/trainer/checkpoints": "trainer.md",
    "pslib/trainer/evaluation": "trainer.md",
    "pslib/trainer/retrieval": "trainer.md",
    "pslib/planner": "trainer.md",
}


def blocks(page: str, language: str) -> list[str]:
    """Fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def names_in(path: Path) -> set[str]:
    """Classes, functions and methods (as ``Class.method``) of a source file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        classes = re.findall(r"^(?:cdef )?class (\w+)", text, re.MULTILINE)
        functions = re.findall(r"(?:def|inline)\s+(?:[\w ]+[ *])?(\w+)\(", text)
        return {*classes, *functions, *(f"{c}.{f}" for c in classes for f in functions)}
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{item.name}" for item in node.body if hasattr(item, "name")}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize(
    ("call", "must", "at_most"),
    [
        ("push", {"Computer.train", "ClientSession._split", "Marks.fresh", "Shard.push"}, 12),
        ("pull", {"ServerRows.pull", "ClientSession._split", "Store.pull", "Computer.train"}, 10),
    ],
)
def test_every_name_in_an_anatomy_exists_in_a_file_that_it_links(call, must, at_most):
    anatomy = re.split(r"\n##+ ", OVERVIEW.read_text("utf-8").split(f"### Anatomy of a {call}")[1])[0]
    files = {(OVERVIEW.parent / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", anatomy)}
    known = set().union(*(names_in(path) for path in files))
    named = set(re.findall(r"`(\w+\.\w+)`", anatomy))
    assert must <= named
    assert named - known == set()
    steps = re.findall(r"^(\d+)\. ", anatomy, re.MULTILINE)
    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    assert len(steps) <= at_most


def test_the_pages_of_the_wire_name_its_version():
    """A client written by a page of another version is refused as a stranger."""
    wire = (ROOT / "docs/design/wire.md").read_text(encoding="utf-8")
    assert re.findall(r"^    version +=.*", wire, re.MULTILINE) == [f"    version     = {PROTOCOL_VERSION}"]
    security = (ROOT / "docs/design/security.md").read_text(encoding="utf-8")
    assert f"protocol version: expected {PROTOCOL_VERSION}, got {PROTOCOL_VERSION - 1};" in security


def test_the_code_tour_names_every_room_of_the_house():
    tour = OVERVIEW.read_text("utf-8").split("## Code tour")[1].split("\n## ")[0]
    rooms = [ROOT / "cython_ext", ROOT / "rec_models", ROOT / "launch"]
    rooms += [path for path in (ROOT / "pslib").iterdir() if path.is_dir() and not path.name.startswith("_")]
    missing = [room.name for room in rooms if f"](../../{room.relative_to(ROOT)})" not in tour]
    assert missing == []


@pytest.mark.parametrize("room", FILE_TABLES)
def test_a_room_with_a_table_of_its_files_names_each(room):
    page = (ROOT / "docs" / "design" / FILE_TABLES[room]).read_text(encoding="utf-8")
    tables = re.findall(r"^\| .*", page, re.MULTILINE)
    named = {name for row in tables for name in re.findall(rf"\]\(\.\./\.\./{room}/(\w+\.py)\)", row)}
    assert {path.name for path in (ROOT / room).glob("*.py")} - named == {"__init__.py"}


def test_the_job_file_in_the_readme_is_a_job_file(tmp_path):
    from launch.job.job import read_job

    (text,) = blocks(README, "yaml")
    file = tmp_path / "clicks.yaml"
    file.write_text(text, encoding="utf-8")
    job = read_job(file)
    assert (job.model.name, job.cluster.servers) == (yaml.safe_load(text)["model"]["name"], 2)


def test_the_table_that_does_not_fit_is_a_part_of_that_job_file(tmp_path):
    from launch.job.job import read_job

    page = (ROOT / "docs" / "guide" / "job_file.md").read_text(encoding="utf-8")
    (limits,) = blocks(page.split("## When the table does not fit")[1], "yaml")
    whole, limited = map(yaml.safe_load, [*blocks(README, "yaml"), limits])
    for section, keys in limited.items():
        whole[section] = whole.get(section, {}) | keys
    file = tmp_path / "clicks.yaml"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    job = read_job(file)
    table = job.table_of(job.build_model())
    assert table.to_dict().keys() - {"name", "seed", "parts"} == limited["table"].keys()
    assert (job.cluster.servers, job.cluster.server_memory_bytes) == (2, 16_000_000_000)


def commands() -> list[list[str]]:
    """Arguments of every ``pslib ...`` line in shell blocks of all pages."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8"), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.partition(" >")[0], comments=True)
                if words and words[0] == "pslib":
                    found.append(words[1:])
    return found


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_pslib_command_in_the_pages_is_understood(arguments, monkeypatch):
    from launch.cli.main import main

    monkeypatch.setattr("click.Command.invoke", lambda self, context: 0)  # read, not run
    assert main(arguments) == 0


def test_make_has_the_targets_that_the_pages_name():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE))
    assert {"demo", "test", "lint"} <= named
    assert named - targets == set()


def test_no_page_holds_a_placeholder():
    plain = {
        page: re.sub(r"^```diff\n.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S) for page in PAGES
    }
    assert [name for name, text in plain.items() if "@@" in text] == []


class TestTheSecurityPage:
    PAGE = (ROOT / "docs" / "design" / "security.md").read_text(encoding="utf-8")

    def test_its_refusal_is_what_a_server_says(self):
        from pslib.errors import ConfigurationError
        from pslib.transport import ZmqTransport

        (said,) = blocks(self.PAGE, "text")
        transport = ZmqTransport()
        with pytest.raises(ConfigurationError) as caught:
            transport.listen("tcp://0.0.0.0:7000")
        transport.close()
        assert said == f"pslib: {caught.value}\n"

    def test_its_lines_are_those_of_the_code(self):
        from pslib.transport.monitor import REFUSED_KEY, mismatch
        from pslib.wire.messages import Stop
        from pslib.wire.permissions import refusal

        told = re.findall(r"^\| `([^`]+)`", self.PAGE.split("## When it")[1].split("## ")[0], re.MULTILINE)
        said = [
            REFUSED_KEY.format(role="trainer"),
            mismatch("trainer", "CURVE"),
            mismatch(None, "CURVE"),
            mismatch("trainer", "NULL"),
            refusal("reader", Stop("", False)).text,
        ]
        for line, real in zip(told, said, strict=False):
            assert real.startswith(line.removesuffix("...")), line
        codec = (ROOT / "pslib" / "wire" / "codec.py").read_text(encoding="utf-8")
        for line in told[len(said) :]:
            what, _, hint = line.partition(": expected ")
            assert f'"{what}: expected ' in codec
            assert hint.rpartition("; ")[2] in codec

    def test_its_table_of_roles_has_all_of_them(self):
        from pslib.wire.fields import ROLES

        table = self.PAGE.split("| role | may |")[1].split("\n\n")[0]
        assert sorted(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == sorted(ROLES)

    def test_its_script_runs_in_a_cluster_with_keys(self, tmp_path, monkeypatch, capsys):
        from pslib.config import ClusterConfig
        from pslib.server.embedded import Embedded
        from pslib.transport import ZmqTransport
        from pslib.transport.keys import make_keys, write_keys

        monkeypatch.chdir(tmp_path)
        made = make_keys()
        write_keys("keys", made)
        embedded = Embedded(ClusterConfig(), ZmqTransport(keys=made["server"]), "tcp://127.0.0.1:0")
        try:
            (script,) = blocks(self.PAGE, "python")
            names = {"coordinator": embedded.address, "cluster_id": embedded.cluster_id}
            exec(compile(script, "security.md", "exec"), names)
        finally:
            embedded.close()
        assert capsys.readouterr().out == "0\n0\n"
