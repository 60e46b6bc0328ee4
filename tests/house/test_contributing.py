"""Each diff in CONTRIBUTING.md applies to the repository; and what two of them add works."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^### (.+?): (\w+) places?\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
DIFFS = {
    title: re.search(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)
    for title, _, text in SECTIONS
}
PLACES = {"A setting": 1, "A model": 2, "An optimizer": 3, "A place to run": 1, "A message": 3}
NUMBERS = {"one": 1, "two": 2, "three": 3}
OF_TESTS = "tests/"
DEFINITIONS = "tests/support/definitions/"


def hunks_of(diff: str) -> list[tuple[str, str, str]]:
    """File, lines before and lines after of each hunk; hunks begin with ``@@`` and have no line numbers."""
    found: list[tuple[str, list[str], list[str]]] = []
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            found.append((path, [], []))
        elif not line.startswith("--- "):
            tag, text = line[:1] or " ", line[1:]
            for place, tags in ((1, " -"), (2, " +")):
                if tag in tags:
                    found[-1][place].append(text + "\n")
    return [(path, "".join(before), "".join(after)) for path, before, after in found]


def changed(diff: str, root: Path) -> dict[str, str]:
    """Texts of the files that a diff changes, after it; its lines before must stand there exactly once."""
    texts: dict[str, str] = {}
    for path, before, after in hunks_of(diff):
        file = root / path
        text = texts[path] if path in texts else file.read_text(encoding="utf-8") if file.exists() else ""
        count = text.count(before) if before else 1 - file.exists()
        assert count == 1, f"{path}: expected once, found {count} times:\n{before}"
        texts[path] = text.replace(before, after) if before else after
    return texts


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python code and tests with all diffs applied, beside the kernels of the repository."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("launch", "rec_models", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(ROOT / "pslib", root / "pslib", ignore=shutil.ignore_patterns("__pycache__"))
    for title in ("A setting", "A model", "A place to run", "A message"):
        for path, text in changed(DIFFS[title], root).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    return root


def run_there(root: Path, *words: str, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment["PATH"] = os.pathsep.join(filter(None, [path, os.environ["PATH"]]))
    done = subprocess.run(
        words, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("title", PLACES)
def test_a_diff_applies_and_has_as_many_places_as_it_says(title):
    texts = changed(DIFFS[title], ROOT)
    places = [path for path in texts if not path.startswith(OF_TESTS) or path.startswith(DEFINITIONS)]
    (number,) = (NUMBERS[number] for name, number, _ in SECTIONS if name == title)
    assert len(places) == number == PLACES[title]
    assert any(path.startswith(OF_TESTS) for path in texts) or title == "A place to run"
    for path, text in texts.items():
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_lint_has_nothing_to_say_of_the_diffs(tmp_path):
    texts = {path: text for diff in DIFFS.values() for path, text in changed(diff, ROOT).items()}
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    ruff = str(Path(sys.executable).parent / "ruff")
    files = [path for path in texts if path.endswith(".py")]
    ours = 'lint.isort.known-first-party = ["pslib", "launch", "rec_models", "tests", "cython_ext"]'
    run_there(tmp_path, ruff, "check", "-q", "--no-cache", "--config", ours, *files)
    run_there(tmp_path, ruff, "format", "-q", "--no-cache", "--check", *files)


def test_the_step_of_the_optimizer_compiles(tmp_path):
    (header,) = (text for path, text in changed(DIFFS["An optimizer"], ROOT).items() if path.endswith(".h"))
    (tmp_path / "steps.c").write_text(header, encoding="utf-8")
    subprocess.run(
        [
            "gcc",
            "-Wall",
            "-Werror",
            "-Wno-psabi",
            "-fsyntax-only",
            "-I",
            ROOT / "cython_ext",
            tmp_path / "steps.c",
        ],
        check=True,
        timeout=60,
    )


def test_the_model_passes_the_tests_of_all_models(copy):
    said = run_there(
        copy, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "fwfm", "tests/rec_models"
    )
    assert int(re.search(r"(\d+) passed", said).group(1)) >= 5


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("A setting", ["tests/values/test_validation.py", "-k", "numpy or NumPy or numbers"]),
        ("A message", ["tests/wire/test_permissions.py"]),
    ],
)
def test_what_is_added_passes_its_tests(copy, title, words):
    said = run_there(copy, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words)
    assert int(re.search(r"(\d+) passed", said).group(1)) >= 1, title


def test_a_script_runs_at_the_place(copy, tmp_path):
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\nshift 3\nexec "$@"\n')  # exec --interactive NAME /bin/sh -c SCRIPT
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    hosts = tmp_path / "hosts"
    hosts.write_text(f"container-1 servers=1 trainers=1 address=127.0.0.1 python={sys.executable}\n")
    script = tmp_path / "script.py"
    script.write_text("import pslib\nwith pslib.connect() as cluster:\n    print('rank', cluster.rank)\n")
    words = ("-P", "-m", "launch.cli.main", "launch", "--on", "docker", "--hosts", str(hosts), "--quiet")
    said = run_there(copy, sys.executable, *words, str(script), path=str(docker.parent))
    assert said == "rank 0\n"
