"""Cores, threads and kernels of BLAS."""

import logging

import numpy as np
import pytest

import pslib
from pslib.errors import ConfigurationError
from pslib.process.blas import TRAINERS_HERE, blas_threads, cores_given, describe_blas, kernels_for
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from rec_models import LR
from tests.support.counting import CountingModel
from tests.support.models.gradient_check import SCHEMA

AVX512 = "flags\t\t: fpu sse2 avx2 avx512f avx512dq avx512bw avx512vl\n"


def test_trainers_share_the_cores_of_a_machine(monkeypatch):
    monkeypatch.setattr("pslib.process.blas.cores", lambda: 8)
    assert cores_given({}) == 8
    assert cores_given({TRAINERS_HERE: "3"}) == 2
    assert cores_given({TRAINERS_HERE: "20"}) == 1


def test_amd_processors_with_avx512_get_the_kernels_for_it():
    assert kernels_for("vendor_id\t: AuthenticAMD\n" + AVX512) == {"OPENBLAS_CORETYPE": "SkylakeX"}
    assert kernels_for("vendor_id\t: GenuineIntel\n" + AVX512) == {}
    assert kernels_for("vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx2 avx512f\n") == {}
    assert kernels_for("") == {}
    assert set(kernels_for()) <= {"OPENBLAS_CORETYPE"}


def test_threads_of_blas_are_set_for_a_while_and_put_back():
    np.ones((2, 2)) @ np.ones((2, 2))
    before = describe_blas()
    with blas_threads(1):
        assert ", 1 thread" in describe_blas()
    assert describe_blas() == before


def test_the_log_says_each_kind_of_threads_of_a_process_once(caplog, monkeypatch):
    monkeypatch.setattr("pslib.trainer.pipeline.compute._said", set())
    with caplog.at_level(logging.INFO, "pslib"):
        for threads in (2, 2, 1, 2, 1):
            with ModelThreads(LR(SCHEMA), threads):
                pass
    lines = [line for line in caplog.messages if "matrix products by" in line]
    assert [line.split("(")[0] for line in lines] == ["pslib: 2 compute thread", "pslib: 1 compute thread"]


def test_the_log_says_that_a_cpu_quota_is_why_there_are_few_threads_unless_a_user_has_chosen_them(
    caplog, monkeypatch
):
    monkeypatch.setattr("pslib.trainer.pipeline.compute._said", set())
    monkeypatch.setattr(
        "pslib.trainer.pipeline.compute.quota_words", lambda: " (a CPU quota allows 2 of 64 cores)"
    )
    monkeypatch.setattr("pslib.process.blas.cores", lambda: 2)
    with caplog.at_level(logging.INFO, "pslib"):
        for threads in (None, 2):
            with ModelThreads(LR(SCHEMA), threads) as model:
                assert model.count == 2
    said = [line.partition("; matrix")[0] for line in caplog.messages]
    assert said == [
        "pslib: 2 compute thread(s) (a CPU quota allows 2 of 64 cores)",
        "pslib: 2 compute thread(s)",
    ]


def test_a_model_in_parts_gets_threads_and_one_of_blas_each_and_the_log_says_so(caplog, monkeypatch):
    monkeypatch.setattr("pslib.trainer.pipeline.compute._said", set())
    with caplog.at_level(logging.INFO, "pslib"), ModelThreads(LR(SCHEMA), 2) as model:
        assert model.count == 2
        assert "2 compute thread(s); matrix products by" in caplog.text
        assert ", 1 thread" in caplog.text


def test_a_model_of_a_users_own_is_computed_as_a_whole():
    own = CountingModel()
    with ModelThreads(own, 4) as model:
        assert model.count == 1
        assert model.predict.__self__._model is own


def test_gradients_that_stand_in_a_row_travel_without_a_copy():
    layout = DenseLayout({"w": (2, 3), "b": (3,)})
    vector = np.arange(20, dtype=np.float32)
    views = layout.views(vector[4:13])
    flat = layout.flatten(views)
    assert np.shares_memory(flat, vector)
    np.testing.assert_array_equal(flat, vector[4:13])
    apart = {"w": views["w"], "b": views["b"].copy()}
    assert not np.shares_memory(layout.flatten(apart), vector)
    np.testing.assert_array_equal(layout.flatten(apart), vector[4:13])


def test_fewer_than_one_compute_thread_is_refused():
    with pslib.connect() as cluster, pytest.raises(ConfigurationError, match="compute_threads"):
        pslib.Trainer(CountingModel(), cluster, compute_threads=0, progress=False)
