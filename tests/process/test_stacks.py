"""Stacks of this process's threads."""

from __future__ import annotations

import threading

from pslib.process.stacks import STACKS_CHARS_MAX, stacks_text


def test_each_thread_is_named_with_its_lines_and_without_values() -> None:
    begun, end = threading.Event(), threading.Event()

    def a_function_with_a_secret(secret: str) -> None:
        assert secret
        begun.set()
        end.wait()

    thread = threading.Thread(target=a_function_with_a_secret, args=("pass" + "word",), name="worker-7")
    thread.start()
    begun.wait()
    try:
        text = stacks_text()
    finally:
        end.set()
        thread.join()
    assert text.startswith("thread MainThread:\n")
    assert "thread worker-7:\n" in text
    assert "in a_function_with_a_secret" in text
    assert "password" not in text
    assert len(text) <= STACKS_CHARS_MAX
