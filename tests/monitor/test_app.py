"""The page's files, state, samples, events and stacks as its server gives them."""

import asyncio
import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from pslib.errors import UnavailableError
from pslib.monitor.app import CLIENTS, FOLDER, Events, States, json_of
from tests.monitor.pages import ask, events, served
from tests.support.recorded_state import RecordedRun


@pytest.fixture
def run():
    return RecordedRun(2, 3, 100.0)


@pytest.fixture
def page(run):
    with served(run) as page:
        yield page


def test_state_and_samples_are_those_of_the_source(run, page):
    assert ask(page.url, "/api/state").plain == run.state()
    assert ask(page.url, "/api/samples").plain == run.samples()


def test_a_loss_that_is_no_number_is_null():
    assert (
        json_of({"loss": float("nan"), "all": [float("inf"), (1, None)]})
        == b'{"loss":null,"all":[null,[1,null]]}'
    )


def test_each_new_state_is_told_with_its_number(run, page):
    with events(page.url) as told:
        kind, number, data = next(told)
        assert (kind, number, json.loads(data)) == ("state", "1", run.state())
        run.advance(5.0)
        kind, number, data = next(told)
        assert (kind, number, json.loads(data)["run"]["seconds"]) == ("state", "2", 105.0)


def test_a_client_without_news_hears_that_the_connection_lives(run):
    sent: list[bytes] = []
    forever, enough = asyncio.Event(), asyncio.Event()

    async def send(message: dict) -> None:
        sent.extend([message["body"]] if "body" in message else [])
        if len(sent) == 4:
            enough.set()

    async def look() -> None:
        states = States(run)
        follower = asyncio.create_task(states.follow())
        client = asyncio.create_task(Events(states, 1, slow_s=5.0, beat_s=0.05)({}, forever.wait, send))
        await asyncio.wait_for(enough.wait(), 20)
        for task in (client, follower):
            task.cancel()

    asyncio.run(look())
    run.close()
    assert [text.split(b"\n")[0] for text in sent[:4]] == [
        b"retry: 1000",
        b"event: state",
        b"event: beat",
        b"event: beat",
    ]


def test_one_client_too_many_is_refused_and_served_when_another_has_left(run, page):
    with ExitStack() as many:
        for _ in range(CLIENTS):
            next(many.enter_context(events(page.url)))
        answer = ask(page.url, "/api/events")
        assert answer.status == 503
        assert answer.plain == {"error": f"{CLIENTS} pages are open, the most there may be; close one"}
        assert ask(page.url, "/api/state").status == 200
    for _ in range(100):  # a server learns of the end of a connection by the connection
        if ask_events(page.url) == 200:
            return
    pytest.fail("no room after all have left")


def ask_events(url):
    from http.client import HTTPConnection
    from urllib.parse import urlsplit

    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("GET", "/api/events")
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_client_that_takes_nothing_is_dropped_and_one_state_waits_for_it_at_most(run):
    """The connection's own buffer aside: the application never sends before the state before was taken."""
    sent: list[bytes] = []
    forever = asyncio.Event()

    async def send(message: dict) -> None:
        sent.extend([message["body"]] if "body" in message else [])
        if len(sent) > 1:
            run.advance()
            await forever.wait()

    async def look() -> None:
        states = States(run)
        follower = asyncio.create_task(states.follow())
        await asyncio.wait_for(Events(states, 1, slow_s=0.2, beat_s=5.0)({}, forever.wait, send), 20)
        assert states.clients == 0
        follower.cancel()

    asyncio.run(look())
    run.close()
    assert len(sent) == 2


def test_without_clients_no_state_is_written(run, page):
    asked = []
    run.change = asked.append
    run.advance()
    assert ask(page.url, "/api/samples").status == 200
    assert asked == []


def test_stacks_are_shown_on_a_post_and_not_on_a_get(run, page):
    answer = ask(page.url, "/api/stacks/trainer/2", method="POST")
    assert (answer.status, answer.plain["text"].splitlines()[1]) == (200, "  trainer 2, in <module>")
    assert ask(page.url, "/api/stacks/trainer/2").status == 405
    assert run.dumped == [("trainer", 2)]
    assert ask(page.url, "/api/stacks/trainer/-1", method="POST").status == 404


def test_stacks_that_can_not_be_had_are_refused_in_a_line(run, page, monkeypatch):
    def refuse(role: str, rank: int) -> str:
        raise UnavailableError("the run has ended")

    monkeypatch.setattr(run, "dump", refuse)
    answer = ask(page.url, "/api/stacks/server/0", method="POST")
    assert (answer.status, answer.plain) == (409, {"error": "the run has ended"})


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/./page.js",
        "/static/",
        "/../../etc/passwd",
        "/static/page.js%00.css",
        "/web/page.js",
    ],
)
def test_no_path_leads_out_of_the_pages_files(page, path):
    answer = ask(page.url, path)
    assert answer.status in (400, 404)
    assert "import" not in answer.text
    assert "root:" not in answer.text


def test_every_file_of_the_page_is_served_by_its_type(page):
    types = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".html": "text/html",
        ".txt": "text/plain",
    }
    for path in FOLDER.iterdir():
        answer = ask(page.url, f"/static/{path.name}")
        assert (answer.status, answer.text) == (200, path.read_text(encoding="utf-8"))
        assert answer.headers["content-type"].partition(";")[0] == types[path.suffix]


def test_the_page_needs_nothing_from_elsewhere():
    """It works offline; the addresses in the vendored files are of comments and of XML's names."""
    own = [path for path in FOLDER.iterdir() if not path.name.startswith("uPlot")]
    assert len(own) >= 8
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert len(text.splitlines()) <= 800
    assert "MIT License" in (FOLDER / "uPlot.LICENSE.txt").read_text(encoding="utf-8")
    assert "uPlot (v1.6.32)" in (FOLDER / "uPlot.iife.min.js").read_text(encoding="utf-8")[:200]


def test_a_page_that_is_closed_leaves_its_port_and_its_clients(run):
    with served(run) as page, events(page.url) as told:
        assert next(told)[0] == "state"
        page.close()
        assert [kind for kind, _, _ in told] == []
        with pytest.raises(ConnectionError):
            ask(page.url, "/")


def test_files_of_the_page_are_in_the_package():
    import tomllib

    root = Path(__file__).resolve().parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    patterns = [pattern for pattern in data["pslib"] if pattern.startswith("monitor/web/")]
    assert {path for pattern in patterns for path in (root / "pslib").glob(pattern)} == set(FOLDER.iterdir())
    assert sum(os.path.getsize(path) for path in FOLDER.iterdir()) < 200_000
