"""The plans in docs/guide/scale.md are what the commands above them print."""

import re
import shlex

import pytest

from launch.cli.main import main
from tests.support.processes.standin_launch import ROOT

PAGE = (ROOT / "docs" / "guide" / "scale.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```sh\n([^\n]*)\n```\n\n```text\n(.*?)```\n", PAGE, re.DOTALL)


def test_the_page_answers_the_question_of_a_hundred_billion():
    assert len(SHOWN) == 3
    assert all("100,000,000,000 parameters" in answer for _, answer in SHOWN)


@pytest.mark.parametrize(("command", "answer"), SHOWN, ids=lambda text: text[:60])
def test_a_plan_of_the_page_is_what_the_command_prints(command, answer, capsys):
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == answer
