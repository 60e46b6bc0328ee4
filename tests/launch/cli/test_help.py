"""The help of the commands."""

from launch.cli.examples import EXAMPLES, FIRST_STEPS
from launch.cli.main import build_parser, main


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
        assert EXAMPLES[name].startswith(f"pslib {name} ")
        assert main([*name.split(), "--help"]) == 0
        examples = "".join(f"  {line}\n" for line in EXAMPLES[name].splitlines())
        assert capsys.readouterr().out.endswith(examples)


def test_no_command_shows_the_example_of_another(capsys):
    for name in ("verify", "checkpoint verify"):
        assert main([*name.split(), "--help"]) == 0
        assert f"example:\n  pslib {name} " in capsys.readouterr().out
