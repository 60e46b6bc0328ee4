"""The server of the page: where it listens, its token's file, what it says when it can't."""

import socket
import sys
from urllib.parse import urlsplit

import pytest

from pslib.errors import ConfigurationError
from pslib.monitor.page_server import check_page, token_of
from tests.monitor.pages import ask, served
from tests.support.recorded_state import RecordedRun


def test_a_port_that_is_taken_is_said_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        why = "Address already in use; give another port, or 0 for any"
        with pytest.raises(ConfigurationError) as told, served(RecordedRun(1, 1, 1.0), port=port):
            pass
    assert str(told.value) == f"the page can't listen on 127.0.0.1, port {port}: {why}"


@pytest.mark.parametrize("host", ["no such host", "h" * 64, "a..b", "192.0.2.1"])
def test_a_host_that_is_none_of_this_machine_is_said_in_one_line(host):
    told = rf"^the page can't listen on {host}, port 0: (?!.*while).*; give an address of this machine$"
    with pytest.raises(ConfigurationError, match=told), served(RecordedRun(1, 1, 1.0), host=host):
        pass


def test_a_page_on_all_addresses_is_reached_by_each_kind():
    with served(RecordedRun(1, 1, 1.0), host="::", token="t" * 20) as page:
        port = urlsplit(page.url).port
        for address in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            assert ask(f"http://{address}:{port}", "/").status == 401


def test_without_the_extra_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(
        ConfigurationError, match=r"^the page of a run needs starlette, .*pip install starlette uvicorn"
    ):
        check_page()


def test_a_token_file_is_made_for_its_owner_alone_and_read_the_next_time(tmp_path):
    file = tmp_path / "token"
    token = token_of(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(token) >= 40
    assert token_of(file) == token


def test_a_token_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "token"
    token_of(file)
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others than its owner can use it; try: chmod 600"):
        token_of(file)


@pytest.mark.parametrize("text", ["", "short", "a" * 30 + " b", "a" * 30 + "&x=1", "é" * 30])
def test_a_token_that_can_be_guessed_or_does_not_fit_an_address_is_refused(tmp_path, text):
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"^--token-file .*token: "):
        token_of(file)


def test_a_token_file_in_no_folder_is_said_in_one_line(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        token_of(tmp_path / "none" / "token")


def test_a_token_file_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expected a file, or a name of one that is made$"):
        token_of(tmp_path)


def test_several_pages_are_served_at_once_each_on_a_port_of_its_own():
    with served(RecordedRun(1, 1, 5.0)) as one, served(RecordedRun(2, 1, 5.0)) as other:
        assert [len(ask(page.url, "/api/state").plain["servers"]) for page in (one, other)] == [1, 2]
