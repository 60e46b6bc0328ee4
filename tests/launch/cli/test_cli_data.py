"""The command line on data: conversion, checks and generated files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.job.job import read_job
from tests.support.job_folder import refused, save, table


def test_converted_criteo_data_comes_with_its_schema_for_the_job_file(tmp_path, capsys):
    line = "\t".join(["1", *map(str, range(13)), *(f"abcdef{number:02}" for number in range(26))])
    (tmp_path / "log.tsv").write_text(line + "\n" + line.replace("1", "0", 1) + "\n")
    out = tmp_path / "log.parquet"
    assert main(["convert", "criteo", str(tmp_path / "log.tsv"), str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 rows of 2 lines, 50.00% positive" in said
    assert f"\nlists and times are found by: pslib describe {out} --out {tmp_path}/log.yaml\n" in said
    schema = said.partition("for the job file:\n")[2]
    job = f"data:\n  train: {out}\n{schema}model: {{name: lr}}\nout: {tmp_path}/run\n"
    (tmp_path / "job.yaml").write_text(job)
    assert len(read_job(tmp_path / "job.yaml").data.schema.columns) == 40
    (line,) = refused(capsys, "convert", "criteo", tmp_path / "log.tsv", out)
    assert "exists already" in line


def test_csv_columns_are_chosen_on_the_command_line(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("y;a;b;c\n1;2;x;7\n0;3;y;8\n")
    arguments = ["--label", "y", "--dense", "a", "--sparse", "b,c", "--integers", "c", "--delimiter", ";"]
    assert main(["convert", "csv", str(tmp_path / "a.csv"), str(tmp_path / "a.parquet"), *arguments]) == 0
    schema = pq.read_schema(tmp_path / "a.parquet")
    assert [str(schema.field(name).type) for name in "yabc"] == ["int8", "double", "string", "int64"]
    assert "label: y" in capsys.readouterr().out


def test_libsvm_becomes_a_list_column(tmp_path, capsys):
    (tmp_path / "a.svm").write_text("1 3:1 5:1\n-1 4:1\n")
    assert main(["convert", "libsvm", str(tmp_path / "a.svm"), str(tmp_path / "a.parquet")]) == 0
    assert "ragged: [{name: ids, pooling: sum}]" in capsys.readouterr().out


def test_a_conversion_of_nothing_is_one_line(tmp_path, capsys):
    (line,) = refused(capsys, "convert", "criteo", tmp_path / "none.tsv", tmp_path / "x.parquet")
    assert line == f"{tmp_path}/none.tsv: no such file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["criteo", "csv", "jsonl", "libsvm", "libffm"])
def test_a_conversion_onto_its_own_source_leaves_the_source(form, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "label,price,user\n1,0.5,u1\n0,1.5,u2\n"
    (tmp_path / "d.csv").write_text(text)
    (tmp_path / "link.csv").symlink_to("d.csv")
    for out in ("d.csv", "./d.csv", tmp_path / "d.csv", "link.csv"):
        for options in ([], ["--overwrite"]):
            (line,) = refused(capsys, "convert", form, "d.csv", out, *options)
            assert line == f"out: {Path(out)} is the source: give another out"
    assert (tmp_path / "d.csv").read_text() == text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.csv", "link.csv"]


def test_a_conversion_whose_rejects_would_replace_its_source_leaves_the_source(tmp_path, capsys):
    """Converting the rejects of an earlier conversion to the same place would overwrite them."""
    text = "label,price\n1,0.5\n"
    source = tmp_path / "x.rejects.tsv"
    source.write_text(text)
    (line,) = refused(capsys, "convert", "csv", source, tmp_path / "x", "--overwrite")
    assert line == f"out: {source} is the source: give another out"
    assert source.read_text() == text
    assert list(tmp_path.iterdir()) == [source]


def test_a_check_of_sound_data_shows_its_columns(folder, capsys):
    assert main(["data", "check", str(folder / "train.parquet"), "--config", str(folder / "job.yaml")]) == 0
    said = capsys.readouterr().out
    assert "train.parquet: 400 rows" in said
    assert said.splitlines()[-1] == "no problem found"


def test_a_check_names_the_first_bad_value_and_ends_with_exit_code_64(folder, capsys):
    labels = table().column("click").to_pylist()
    bad = save(folder, "label2.parquet", click=pa.array([*labels[:7], 2, *labels[8:]], pa.int8()))
    assert main(["data", "check", str(bad)]) == 64
    (problem,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert str(bad) in problem
    assert "row 7" in problem
    assert "'click'" in problem


def test_a_check_of_nothing_is_one_line(tmp_path, capsys):
    assert refused(capsys, "data", "check", tmp_path / "none.parquet") == [
        f"{tmp_path}/none.parquet: no such file or folder"
    ]


def test_generated_data_is_not_overwritten_unasked(tmp_path, capsys):
    arguments = ["data", "generate", str(tmp_path), "--rows", "500", "--test-rows", "100"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "best possible AUC" in said
    assert "sparse: [C1, C2," in said
    assert all("exists already" in line for line in refused(capsys, *arguments))
    assert main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize("fields", [{"dense": ["x"]}, {"sparse": ["k"]}, {"ragged": ["l"]}])
def test_data_of_one_kind_of_field_passes_the_check_of_a_job(fields, tmp_path, capsys):
    columns = {"click": [0, 1, 1], "x": [0.5, 1.5, 0.5], "k": ["a", "b", None], "l": [[1], [], None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    job = {"data": {"train": "a.parquet", "schema": {"label": "click"} | fields}, "model": {"name": "lr"}}
    (tmp_path / "job.yaml").write_text(json.dumps(job | {"out": "run"}))
    assert main(["data", "check", str(tmp_path / "a.parquet"), "--config", str(tmp_path / "job.yaml")]) == 0
    assert "no problem found" in capsys.readouterr().out
