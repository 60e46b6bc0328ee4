"""Keys and their folder: permissions, refusals, and no output that shows a secret."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pslib.errors import ConfigurationError
from pslib.transport.keys import (
    ALLOWED_MAX,
    add_key,
    make_keys,
    read_folder,
    read_keys,
    remove_key,
    write_keys,
)
from pslib.wire.fields import ROLES

MADE = make_keys()


def test_every_role_gets_a_key_and_only_the_servers_know_which_may_connect() -> None:
    assert tuple(MADE) == ROLES
    assert [role for role, own in MADE.items() if own.listens] == ["server"]
    assert MADE["server"].allowed == {own.public: role for role, own in MADE.items()}
    assert len({own.secret for own in MADE.values()} | {MADE["server"].server_secret}) == len(ROLES) + 1
    assert not any(own.allowed for role, own in MADE.items() if role != "server")


def test_keys_come_back_as_they_were_written_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    write_keys(folder, MADE)
    assert read_folder(folder) == MADE
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nothing_that_is_printed_shows_a_secret() -> None:
    for own in MADE.values():
        shown = f"{own} {own!r} {[own]} {asdict(own)['public']}"
        assert own.secret not in shown
        assert MADE["server"].server_secret not in shown


def test_a_key_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    write_keys(tmp_path, {"trainer": MADE["trainer"]})
    with pytest.raises(ConfigurationError, match=r"trainer\.keys: there is a key already"):
        write_keys(tmp_path, {"trainer": make_keys()["trainer"]})
    assert read_keys(tmp_path / "trainer.keys") == MADE["trainer"]


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_no_key_is_made_where_others_can_write(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"others can't write.* got mode 7.*chmod go-w"):
        write_keys(tmp_path, MADE)
    tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_is_refused_as_ssh_does(tmp_path: Path, mode: int) -> None:
    write_keys(tmp_path, MADE)
    path = tmp_path / "trainer.keys"
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="others may read this key; chmod 600"):
        read_keys(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "boss"},
        {"role": 3},
        {"secret": ""},
        {"secret": MADE["reader"].secret},
        {"secret": '"' * 40},
        {"server_public": "short"},
        {"server_secret": MADE["trainer"].secret},
        {"allowed": {"short": "trainer"}},
        {"allowed": {MADE["reader"].public: "boss"}},
        {"allowed": [MADE["reader"].public]},
        {"more": "x"},
        {"public": None},
    ],
)
def test_a_file_with_anything_wrong_is_one_line_that_names_it_and_quotes_no_secret(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "trainer.keys"
    path.touch(0o600)
    path.write_text(json.dumps(json.loads(MADE["trainer"].to_text()) | changes))
    with pytest.raises(ConfigurationError, match=r"trainer\.keys: ") as caught:
        read_keys(path)
    assert "\n" not in str(caught.value)
    assert MADE["trainer"].secret not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"1" * (1 << 20 | 1)])
def test_a_file_that_is_something_else_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trainer.keys"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="expected a file of pslib keys make, got something else"):
        read_keys(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="none: No such file or directory; expected a file of"):
        read_keys(tmp_path / "none")


def test_the_list_of_keys_has_a_limit() -> None:
    many = {f"{number:040}": "reader" for number in range(ALLOWED_MAX + 1)}
    with pytest.raises(ConfigurationError, match="expected at most 10000 keys"):
        replace(MADE["server"], allowed=many)


def test_a_key_can_be_added_and_taken_away(tmp_path: Path) -> None:
    write_keys(tmp_path, MADE)
    added = read_keys(add_key(tmp_path, "dashboard", "reader"))
    assert (added.role, added.server_public) == ("reader", MADE["server"].server_public)
    assert read_keys(tmp_path / "server.keys").allowed == MADE["server"].allowed | {added.public: "reader"}
    remove_key(tmp_path, "dashboard")
    assert read_folder(tmp_path) == MADE
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f"{role}.keys" for role in ROLES)


@pytest.mark.parametrize(
    ("name", "role"), [("../x", "reader"), ("", "reader"), ("x", "boss"), ("a b", "reader")]
)
def test_a_key_needs_a_name_that_is_a_file_and_a_role_that_there_is(
    tmp_path: Path, name: str, role: str
) -> None:
    write_keys(tmp_path, MADE)
    with pytest.raises(ConfigurationError, match=r"expected (a name of letters|one of server, trainer)"):
        add_key(tmp_path, name, role)


def test_the_servers_key_can_not_be_taken_away(tmp_path: Path) -> None:
    write_keys(tmp_path, MADE)
    with pytest.raises(ConfigurationError, match="not the servers'"):
        remove_key(tmp_path, "server")
    with pytest.raises(ConfigurationError, match="there is a key already"):
        add_key(tmp_path, "trainer", "trainer")


def test_keys_that_are_added_at_the_same_time_are_all_known(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", make_keys())
    names = [f"reader-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_key(tmp_path / "keys", name, "reader"), names))
    known = read_keys(tmp_path / "keys" / "server.keys").allowed
    assert {read_keys(tmp_path / "keys" / f"{name}.keys").public for name in names} <= set(known)
