"""The section `table` of a job file: a table at the limit of memory."""

import pytest

from pslib.table.policies import ByAge, ByCount, ByScore, Compact, Score
from tests.launch.job.test_job_config import GOOD, problems, read


def test_a_table_is_stored_and_kept_as_the_file_says(tmp_path):
    text = """\
table:
  storage: bfloat16
  admission: {name: ByCount, count: 3}
  eviction: [{name: ByAge, age: 1000}, {name: ByScore, score: 0.5}]
  score: {decay: 0.9}
  compact: {wide_from: v, score: 2}
  when_full: oldest
training: {maintain_every_batches: 100}
cluster: {server_memory_bytes: 100000000}
"""
    job = read(tmp_path, GOOD + text)
    table = job.table_of(job.build_model())
    assert (table.storage, table.admission, table.when_full) == ("bfloat16", ByCount(3), "oldest")
    assert table.eviction == (ByAge(1000), ByScore(0.5))
    assert (table.score, table.compact) == (Score(decay=0.9), Compact("v", score=2))
    assert job.cluster_config.server_memory_bytes == 100_000_000
    again = read(tmp_path, job.to_yaml())
    assert again.table_of(again.build_model()) == table
    assert again.training.maintain_every_batches == 100


def test_a_table_without_the_section_is_as_it_always_was(tmp_path):
    job = read(tmp_path, GOOD)
    assert job.table_of(job.build_model()) == job.build_model().table()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            "{storage: bf16}",
            "table.storage: expected one of float32, bfloat16, float16, int8, got 'bf16', "
            "did you mean 'bfloat16'?",
        ),
        ("{storages: int8}", "table.storages: unknown key, did you mean 'storage'?"),
        ("{admission: {count: 2}}", "table.admission.name: is missing; one of ByCount, ByBloom, ByChance"),
        (
            "{admission: {name: ByCnt}}",
            "table.admission.name: expected one of ByCount, ByBloom, ByChance, got 'ByCnt', "
            "did you mean 'ByCount'?",
        ),
        (
            "{admission: {name: ByCount, cuont: 2}}",
            "table.admission.cuont: unknown key, did you mean 'count'?",
        ),
        (
            "{admission: {name: ByCount, count: 0}}",
            "table.admission.count: expected a whole number in 1..65535, got 0",
        ),
        (
            "{eviction: [{name: ByAge, age: -1}]}",
            "table.eviction.0.age: expected a number, 0 or more and finite in float32, got -1",
        ),
        ("{score: {decay: 2}}", "table.score.decay: expected a number in 0..1, got 2"),
        (
            "{when_full: lowest_score}",
            "table.score: is missing; when_full 'lowest_score' needs a score: Score(), in a job file {}",
        ),
        ("{compact: {shows: 2}}", "table.compact.wide_from: is missing; it takes wide_from, shows, score"),
        (
            "{admission: ByCount}",
            "table.admission: expected a mapping, for example {name: ByCount, count: 3}, got 'ByCount'; "
            "did you mean {name: ByCount}?",
        ),
        (
            "{eviction: {}}",
            "table.eviction: expected a list, for example [{name: ByAge, age: 500000}], got {}",
        ),
        (
            "{eviction: [{name: ByNorm}]}",
            "training.maintain_every_batches: expected > 0, as table.eviction acts only then, got 0 (never)",
        ),
        (
            "{compact: {wide_from: w, shows: 2}}",
            "table.compact.wide_from: expected one of the parts after the first, ['v'], got 'w'",
        ),
        (
            "{admission: {name: [ByCount]}}",
            "table.admission.name: expected one of ByCount, ByBloom, ByChance, got ['ByCount'], "
            "did you mean 'ByCount'?",
        ),
        (
            "{score: {nonclick: 1.0e+300}}",
            "table.score.nonclick: expected a number, 0 or more and finite in float32, got 1e+300",
        ),
        (
            f"{{score: {{click: {10**400}}}}}",
            "table.score.click: expected a number, 0 or more and finite in float32, got "
            f"{10**17}...{'0' * 19}",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_told_with_its_path(tmp_path, section, said):
    assert problems(tmp_path, GOOD + f"table: {section}\n") == [said]


def test_a_memory_limit_below_what_a_shard_needs_is_refused(tmp_path):
    (problem,) = problems(tmp_path, GOOD + "cluster: {server_memory_bytes: 1000}\n")
    assert problem.startswith("cluster.server_memory_bytes: expected 0 (no limit) or at least 4194304")


@pytest.mark.parametrize(
    ("text", "count"), [("16GB", 16 * 10**9), ("1.5 GiB", 3 << 29), ("16000000000", 16 * 10**9)]
)
def test_a_memory_limit_may_have_a_unit(tmp_path, text, count):
    job = read(tmp_path, GOOD + f"cluster: {{server_memory_bytes: {text}}}\n")
    assert job.cluster_config.server_memory_bytes == count
    assert f"server_memory_bytes: {count}\n" in job.to_yaml()


def test_a_memory_limit_with_a_unit_that_is_none_is_refused(tmp_path):
    (problem,) = problems(tmp_path, GOOD + "cluster: {server_memory_bytes: 16 barrels}\n")
    assert problem == (
        "cluster.server_memory_bytes: expected a whole number of bytes or a text like 16GB, got '16 barrels'"
    )
