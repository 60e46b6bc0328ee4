"""The page in a browser (a subprocess): what it shows, to whom, how it follows a run, what it survives.

Playwright and Debian's Chromium are not in the extra `test`: 165 and 400 MB.
"""

import os
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.monitor.pages import served
from tests.support.recorded_state import RecordedRun

WITHOUT = "access, events and escaped texts are tested without a browser, in test_app.py and test_access.py"
playwright = pytest.importorskip(
    "playwright.sync_api", reason=f"playwright (165 MB, not in the extra test) is not installed; {WITHOUT}"
)
CHROMIUM = "/usr/bin/chromium"
if not Path(CHROMIUM).exists():
    pytest.skip(f"there is no {CHROMIUM} (Debian: chromium); {WITHOUT}", allow_module_level=True)

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
WIDTHS = (390, 1280, 1600)
SCHEMES = ("light", "dark")
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Look:
    """Browser in which pages are opened, which must write nothing to its console and open no dialog."""

    def __init__(self, browser) -> None:
        self.browser, self.complaints = browser, []

    @contextmanager
    def at(self, run, width=1280, scheme="light", **settings):
        """Show a run in a page while the block runs."""
        with served(run, **settings) as server:
            context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            try:
                page = context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
                page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
                page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
                page.goto(server.url)
                page.wait_for_selector("body[data-ready=yes]")
                page.server = server
                yield page
            finally:
                context.close()
        assert self.complaints == []


@pytest.fixture
def look(browser):
    """Browser that looks at runs."""
    return Look(browser)


def shows(page, selector: str, text: str) -> None:
    """Wait until an element has a text."""
    playwright.expect(page.locator(selector)).to_contain_text(text, timeout=PATIENCE_MS)


def large(change=None, seconds=700.0) -> RecordedRun:
    return RecordedRun(128, 64, seconds, change)


def test_a_run_of_128_servers_and_64_trainers_is_shown_and_stays_usable(look):
    with look.at(large()) as page:
        assert page.locator("#servers .tile").count() == 128
        shows(page, "#about", "128 servers · 64 trainers")
        assert page.locator(".processes tbody tr").count() == 12
        shows(page, ".processes tbody tr:first-child", "trainer 63")  # the straggler
        page.get_by_role("button", name="Show all 193").click()
        assert page.locator(".processes tbody tr").count() == 193
        page.get_by_label("Filter processes").fill("server 127")
        assert page.locator(".processes tbody tr").count() == 1
        page.get_by_label("Filter processes").fill("nothing of that name")
        shows(page, "#processes", "no process matches")
        page.get_by_label("Filter processes").fill("")
        page.get_by_label("Which processes").select_option("troubled")
        assert page.locator(".processes tbody tr").count() == 1


def test_the_page_follows_the_run_and_keeps_the_focus(look):
    run = RecordedRun(4, 4, 200.0)
    with look.at(run) as page:
        shows(page, "#head", "3 min 20 s")
        button = page.get_by_role("button", name="Stacks of trainer 1")
        button.focus()
        run.advance(400.0)
        shows(page, "#head", "10 min 0 s")
        assert button.evaluate("node => node === document.activeElement")
        shows(page, "#checkpoints tbody tr:first-child", "s ago")


def test_a_figure_that_changes_does_not_take_the_focus_from_its_warning(look):
    run = RecordedRun(3, 2, 100.0, lambda state: state["imbalance"].update(rows=state["run"]["seconds"] / 50))
    with look.at(run) as page:
        link = page.get_by_role("link", name="largest server has 2.00 × the mean rows")
        link.focus()
        run.advance(50.0)
        shows(page, "#attention", "3.00 × the mean rows")
        assert (
            page.evaluate("document.activeElement.textContent") == "largest server has 3.00 × the mean rows"
        )


def test_a_server_that_is_lost_and_comes_back_is_shown_and_said(look):
    lost, silent = [], []

    def change(state):
        state["partitions"]["moving"] = []
        for one in state["processes"]:
            if one["role"] == "server" and one["rank"] in lost:
                one["state"], one["silent_s"] = "lost", 7.0
            if one["role"] == "server" and one["rank"] in silent:
                one["silent_s"] = 3.5
        if lost:
            told = {"number": 900, "kind": "lost", "text": "server 2 is lost: silent for 7.0 s"}
            state["events"].append(told | {"at_s": state["now_s"], "role": "server", "rank": 2})

    run = RecordedRun(4, 2, 100.0, change)
    with look.at(run) as page:
        shows(page, "#attention", "Nothing needs attention")
        silent.append(2)
        run.advance()
        shows(page, "#attention", "server 2 is silent")
        assert page.get_by_label("server 2: silent").count() == 1
        silent.clear()
        lost.append(2)
        run.advance()
        shows(page, "#attention", "server 2 is lost")
        assert page.get_by_label("server 2: lost").count() == 1
        shows(page, "#servers", "3 of 4")
        shows(page, "#events li:first-child", "server 2 is lost: silent for 7.0 s")
        shows(page, "#live", "server 2 is lost: silent for 7.0 s")
        lost.clear()
        run.advance()
        shows(page, "#attention", "Nothing needs attention")
        shows(page, "#servers", "4 of 4")


def test_texts_of_a_run_are_texts_whatever_they_say(look):
    def change(state):
        state["run"] |= {"name": EVIL, "error": EVIL, "phase": EVIL, "model": EVIL, "folder": EVIL}
        state["keys"]["fields"][0]["name"] = EVIL
        state["tables"][0]["name"] = EVIL
        state["events"][-1] |= {"text": EVIL, "kind": EVIL}
        state["processes"][1] |= {"where": EVIL, "address": EVIL, "waits": [EVIL]}
        state["checkpoints"][-1] |= {"path": EVIL, "kind": EVIL}
        state["log"]["durability"] = EVIL

    with look.at(RecordedRun(2, 2, 200.0, change)) as page:
        for place in ("#name", "#error", "#keys tbody", "#tables tbody", "#events li:first-child"):
            shows(page, place, EVIL)
        shows(page, ".processes tbody tr:first-child", EVIL)
        assert page.locator("img, script:not([src])").count() == 0


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_passes_the_checks_for_those_who_can_not_see_it(look, width, scheme):
    import axe_core_python

    def troubled(state):
        state["processes"][3]["state"] = "lost"
        state["run"]["error"] = "server 2 does not answer"
        state["ledger"]["missing"] = 2
        state["partitions"]["moving"] = [[7, 0, 5]]

    with look.at(large(troubled), width, scheme) as page:
        for summary in page.locator("summary").all():
            summary.click()
        page.locator("#servers .tile").nth(5).click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate((Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        found = page.evaluate("axe.run().then(found => found.violations)")
        assert [
            (one["id"], node["html"][:200], node["failureSummary"]) for one in found for node in one["nodes"]
        ] == []


def test_keys_lead_from_server_to_server_and_show_one(look):
    with look.at(RecordedRun(8, 2, 100.0)) as page:
        page.get_by_label("server 0: live").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        shows(page, "#servers .chosen", "Server 2, live")
        page.keyboard.press("End")
        page.keyboard.press(" ")
        shows(page, "#servers .chosen", "Server 7, live")
        assert page.locator("#servers .tile[tabindex='0']").count() == 1
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"
        page.get_by_role("button", name="Memory").click()
        shows(page, "#servers .note", "Fill: memory")


def test_a_chart_has_its_values_as_a_table_and_in_words(look):
    with look.at(RecordedRun(2, 2, 300.0)) as page:
        chart = page.locator("figure").filter(has=page.get_by_role("heading", name="AUC"))
        words = re.compile(r"lowest 0\.")  # samples come in a request of their own
        playwright.expect(chart.get_by_role("img")).to_have_attribute(
            "aria-label", words, timeout=PATIENCE_MS
        )
        chart.get_by_text("As a table").click()
        assert 10 <= chart.locator("tbody tr").count() <= 25
        assert chart.locator("tbody tr:last-child td").inner_text().startswith("0.80")


def test_stacks_are_shown_on_request_and_the_focus_returns(look):
    run = RecordedRun(2, 2, 100.0)
    with look.at(run) as page:
        button = page.get_by_role("button", name="Stacks of server 1")
        button.focus()
        page.keyboard.press("Enter")
        shows(page, "#stacks_title", "Stacks of server 1")
        shows(page, "#stacks_text", "server 1, in <module>")
        page.keyboard.press("Escape")
        assert not page.locator("#stacks").is_visible()
        assert button.evaluate("node => node === document.activeElement")
        assert run.dumped == [("server", 1)]


def test_a_page_without_its_run_says_so_and_goes_on_when_it_is_back(look):
    run = RecordedRun(2, 2, 100.0)
    with look.at(run) as page:
        page.server.close()
        shows(page, "#link", "disconnected")
        shows(page, "#offline", "No connection to the run: what is shown is ")
        assert page.locator(".stale").count() == 1
        port = int(page.server.url.split(":")[2].strip("/"))
        after = RecordedRun(2, 2, 400.0)
        with served(after, port=port):
            shows(page, "#head", "6 min 40 s")
            assert page.locator("#offline").is_hidden()
            page.context.close()
        look.complaints[:] = [one for one in look.complaints if "ERR_" not in one]  # of the browser itself


def test_colours_follow_the_system_until_the_reader_chooses_and_the_choice_stays(look):
    background = "getComputedStyle(document.body).backgroundColor"
    with look.at(RecordedRun(1, 1, 60.0), scheme="dark") as page:
        dark = page.evaluate(background)
        page.get_by_role("button", name="Auto").click()
        light = page.evaluate(background)
        assert light != dark
        page.reload()
        assert page.evaluate(background) == light
        page.get_by_role("button", name="Light").click()
        assert page.evaluate(background) == dark


def test_a_run_that_has_failed_shows_how_it_ended_and_what_is_known(look):
    def ended(state):
        state["run"] |= {"state": "failed", "phase": "failed", "error": "all servers are gone", "eta_s": None}
        state["now_s"] = time.time()  # noqa: TID251  (the page's own clock tells the age)
        for one in state["processes"]:
            one |= {"state": "left", "silent_s": None, "time": None}
        state |= {"servers": [], "traffic": {}, "keys": {}, "tables": [], "checkpoints": []}
        state |= {"imbalance": {}, "ledger": {}, "log": {}, "partitions": {}}

    with look.at(RecordedRun(2, 2, 100.0, ended)) as page:
        shows(page, "#state", "failed")
        shows(page, "#error", "Last error: all servers are gone")
        shows(page, "#link", "from the run's files")
        assert page.get_by_role("button", name="Stacks of server 1").is_disabled()
        assert page.locator("text=/NaN|undefined|null|Infinity/").count() == 0


def test_curves_of_a_run_that_ends_go_on_to_its_last_second(look):
    run = RecordedRun(2, 4, 200.0)

    def change(state):
        state["run"]["loss"] = 0.1234 if state["run"]["seconds"] == 204.0 else 0.9
        if state["run"]["seconds"] > 204.0:  # as its launcher marks it
            state["run"] |= {"state": "ended", "loss": None}

    run.change = change
    with look.at(run) as page:
        run.advance(4.0)  # soon after the samples were asked for
        shows(page, "#training_charts figure:nth-child(2) .value", "0.1234")
        run.advance(1.0)
        shows(page, "#state", "ended")
        shows(page, "#training_charts figure:nth-child(2) .value", "0.1234")


def test_a_run_of_which_nothing_is_known_yet_is_shown_too(look):
    def nothing(state):
        name = state["run"]["name"]
        for key in list(state):
            state[key] = None
        state |= {"format": 1, "now_s": 1.0, "run": {"name": name, "state": "running", "phase": "starting"}}

    run = RecordedRun(1, 1, 0.5, nothing)
    with look.at(run) as page:
        shows(page, "#state", "running: starting")
        assert page.locator("text=/NaN|undefined|null|Infinity/").count() == 0


def test_the_token_is_exchanged_and_leaves_the_address(look):
    with look.at(RecordedRun(1, 1, 60.0), token="a-token-of-some-length-123") as page:
        assert page.url == page.server.url.partition("?")[0]
        page.reload()
        shows(page, "#name", "clicks")


@pytest.mark.skipif(
    "PSLIB_SHOTS" not in os.environ,
    reason="makes pictures for people, in the folder PSLIB_SHOTS, and checks nothing",
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_for_people_to_look_at(look, width, scheme):
    for name, run in (("small", RecordedRun(4, 4, 630.0)), ("large", large())):
        with look.at(run, width, scheme) as page:
            file = Path(os.environ["PSLIB_SHOTS"]) / f"{name}_{width}_{scheme}.png"
            page.screenshot(path=file, full_page=True)
            assert file.stat().st_size > 10_000
