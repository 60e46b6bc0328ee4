"""YAML as people expect it: read by version 1.2, and written so that all parsers read the same."""

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from launch.job.yaml12 import flow_text, read_yaml, write_yaml


def test_numbers_and_words_are_those_of_yaml_1_2():
    text = "[1e-3, 1.5e4, -.5, 010, 0x10, on, yes, no, 1:30, 2020-01-01, true, null, ~, .inf]"
    assert read_yaml(text, "x") == [
        1e-3, 1.5e4, -0.5, 10, 16, "on", "yes", "no", "1:30", "2020-01-01", True, None, None, float("inf")
    ]  # fmt: skip


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_is_written_reads_back_to_the_same_value(value):
    assert read_yaml(write_yaml(value), "x") == value


@given(PLAIN)
def test_what_is_written_means_the_same_to_other_readers(value):
    assert yaml.safe_load(write_yaml(value)) == value


@given(PLAIN)
@example(["a\nb", {"\n": "a \n b\u2028\x85"}])
def test_a_value_on_one_line_reads_back_inside_a_list(value):
    assert len(flow_text(value).splitlines()) == 1
    assert read_yaml(f"[{flow_text(value)}, 1]", "x") == [value, 1]
