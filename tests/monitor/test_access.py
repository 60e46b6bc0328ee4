"""Nobody who is not asked can look at a run: another site, another name, no token, a wrong one."""

import pytest

from pslib.monitor.access import HEADERS, is_loopback
from tests.monitor.pages import ask, events, served
from tests.support.recorded_state import RecordedRun

API = ("/", "/api/state", "/api/samples", "/static/page.js")
TOKEN = "a-token-of-some-length-123"


@pytest.fixture(scope="module")
def page():
    with served(RecordedRun(2, 2, 100.0)) as page:
        yield page


@pytest.fixture(scope="module")
def guarded():
    with served(RecordedRun(2, 2, 100.0), token=TOKEN) as page:
        yield page


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.1.2.3", "LocalHost."])
@pytest.mark.parametrize("port", ["", ":80", ":8080"])
def test_loopback_is_known_by_its_names_whatever_the_port_of_a_tunnel(page, host, port):
    assert ask(page.url, "/api/state", host=host + port).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1.evil.example", "@", "[", "[::1"],
)
def test_a_name_that_another_site_has_given_to_this_machine_is_refused(page, host):
    for path in API:
        answer = ask(page.url, path, host=host)
        assert answer.status in (400, 403)
        assert "clicks" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://["},
    ],
    ids=str,
)
def test_what_another_site_causes_is_refused(page, headers):
    for path in API:
        assert ask(page.url, path, headers).status == 403
    assert ask(page.url, "/api/stacks/server/0", headers, "POST").status == 403


def test_the_pages_own_requests_are_answered(page):
    own = {"Origin": page.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    for path in API:
        assert ask(page.url, path, own).status == 200
    assert ask(page.url, "/api/stacks/server/0", own, "POST").status == 200


def test_a_link_of_another_site_may_lead_to_the_page_and_to_nothing_else(page):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(page.url, "/", link).status == 200
    assert ask(page.url, "/api/state", link).status == 403
    assert ask(page.url, "/", link | {"Sec-Fetch-Dest": "iframe"}).status == 403


def test_every_answer_forbids_inline_scripts_frames_and_guesses_of_its_type(page):
    answers = [ask(page.url, path) for path in (*API, "/nothing", "/static/nothing.js")]
    answers.append(ask(page.url, "/", host="evil.example"))
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers.get_all("content-security-policy") == [HEADERS["content-security-policy"]]


def test_without_the_token_nothing_is_shown(guarded):
    for path in (*API, "/api/events", "/nothing"):
        answer = ask(guarded.url, path)
        assert (answer.status, answer.text) == (
            401,
            "expected the token: open the address that pslib printed when the page began\n",
        )
    assert ask(guarded.url, "/api/stacks/server/0", method="POST").status == 401


@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", "é", TOKEN.upper()])
def test_a_wrong_token_shows_nothing_and_gives_no_cookie(guarded, given):
    from urllib.parse import quote

    answer = ask(guarded.url, f"/?token={quote(given)}")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_token_counts_on_the_page_alone_and_is_exchanged_for_a_cookie(guarded):
    assert guarded.url.endswith(f"/?token={TOKEN}")
    assert ask(guarded.url, f"/api/state?token={TOKEN}").status == 401
    answer = ask(guarded.url, f"/?token={TOKEN}")
    assert answer.status == 200
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in cookie
    for path in API:
        assert ask(guarded.url, path, {"Cookie": f"other=1; {cookie}"}).status == 200
        assert ask(guarded.url, path, {"Cookie": cookie[:-1]}).status == 401
        assert ask(guarded.url, path, {"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}).status == 403
    with events(guarded.url, {"Cookie": cookie}) as told:
        assert next(told)[0] == "state"


def test_a_page_beyond_loopback_always_has_a_token_of_its_own():
    first, second = RecordedRun(1, 1, 1.0), RecordedRun(1, 1, 1.0)
    with served(first, host="0.0.0.0") as one, served(second, host="0.0.0.0") as other:
        tokens = [page.url.partition("?token=")[2] for page in (one, other)]
        assert min(map(len, tokens)) >= 40
        assert len(set(tokens)) == 2
        port = one.url.split(":")[2].split("/")[0]
        here = f"http://127.0.0.1:{port}/"
        assert ask(here, "/api/state", host="any.name").status == 401
        assert ask(here, f"/?token={tokens[0]}", host="any.name").status == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("host", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_other_addresses(host, expected):
    assert is_loopback(host) is expected
