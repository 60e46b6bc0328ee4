"""The help of the commands."""

from launch.cli import build_parser, main
from launch.examples_text import EXAMPLES, FIRST_STEPS


def test_every_example_of_the_help_is_read_as_arguments(capsys):
    shown = [line.strip() for text in EXAMPLES.values() for line in text.splitlines()]
    first = [line.strip().split("   ")[0] for line in FIRST_STEPS.splitlines() if "pslib " in line]
    assert len(first) == 5
    for line in [*shown, *first]:
        program, *words = line.split()
        assert program == "pslib"
        assert build_parser().parse_args(words).command_function
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(line in said for line in first)
    for name in EXAMPLES:
        words = next(line for line in shown if name in line.split()).split()[1:]
        assert main([*words[: words.index(name) + 1], "--help"]) == 0
        assert EXAMPLES[name].splitlines()[0] in capsys.readouterr().out
