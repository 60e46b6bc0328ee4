"""``pslib predict``, ``nearest`` and ``vectors``: ask the model of a checkpoint, which needs no job file."""

from __future__ import annotations

from launch.cli.command import (
    FILE,
    FOLDER,
    argument,
    command,
    json_option,
    option,
    overwrite_option,
    show,
)
from pslib.errors import EXIT_DONE

checkpoint_argument = argument(
    "checkpoint", "CHECKPOINT", "what a run has saved; of numbered ones the newest", FOLDER
)


@command(
    "predict",
    """
pslib predict runs/clicks/checkpoint new.csv --out scores.csv
pslib predict runs/clicks/checkpoint clicks/march --out scores.parquet --keep user --keep item
""",
)
@checkpoint_argument
@argument("data", "DATA...", "files or folders of Parquet, CSV or JSON lines", FILE, nargs=-1, required=True)
@option(
    "--out", "FILE", "the file that is written: CSV if it ends in .csv, else Parquet", FILE, required=True
)
@option("--keep", "NAME", "a column that is written too (default: all); may be repeated", multiple=True)
@overwrite_option
@json_option
def predict_command(
    checkpoint: str, data: tuple[str, ...], out: str, keep: tuple[str, ...], overwrite: bool, as_json: bool
) -> int:
    """Write the prediction of each row beside its columns.

    Rows keep their order; no label is needed.
    """
    from pslib.data.data_files import data_files
    from pslib.data.text_cache import bad_records
    from pslib.scoring.scored_file import write_scored
    from pslib.text import counted
    from rec_models.saved import load

    model = load(checkpoint)
    rows = write_scored(model, list(data), out, keep=keep or None, overwrite=overwrite)
    bad = sum(map(bad_records, data_files(list(data)).files))
    left_out = f"; {counted(bad, 'bad record')} of the text left out" if bad else ""
    plain = {"rows": rows, "out": out, "steps": model.steps, "bad_records": bad}
    show(plain, [f"{rows:,} rows  {out}{left_out}"], as_json)
    return EXIT_DONE


@command(
    "nearest",
    """
pslib nearest runs/movies/checkpoint item 50 -k 10 --data movies.parquet
pslib nearest runs/clicks/checkpoint city Oslo --data clicks/test.parquet
""",
)
@checkpoint_argument
@argument("field", "FIELD", "item, of a model that ranks items; else a sparse or ragged field")
@argument("value", "VALUE", "the item, or a value of the field")
@option("-k", "N", "how many (default 10)", int, default=10)
@option("--data", "PATH", "where the compared items or values are: a file or a folder", FILE, required=True)
@json_option
def nearest_command(checkpoint: str, field: str, value: str, k: int, data: str, as_json: bool) -> int:
    """Show the values whose vectors have the largest cosine with that of a value."""
    from rec_models.saved import load

    model = load(checkpoint, items=data)
    found = model.nearest(field, value, k)
    lines = [f"{one['cosine']:.4f}  {one['value']}" for one in found.to_pylist()]
    show({"nearest": found.to_pylist()}, lines, as_json)
    return EXIT_DONE


@command(
    "vectors",
    """
pslib vectors runs/clicks/checkpoint city --data clicks/test.parquet --out cities.parquet
pslib vectors runs/movies/checkpoint item --data movies.parquet --out movie_vectors.parquet
""",
)
@checkpoint_argument
@argument("field", "FIELD", "item or query, of a model that ranks items; else a sparse or ragged field")
@option("--data", "PATH", "where the items, queries or values are: a file or a folder", FILE, required=True)
@option("--out", "FILE", "the Parquet file that is written", FILE, required=True)
@overwrite_option
@json_option
def vectors_command(checkpoint: str, field: str, data: str, out: str, overwrite: bool, as_json: bool) -> int:
    """Write the vector of each distinct value of a field, or of each item or query.

    The file has the column of the field, and a column vector. Rows of queries keep their order.
    """
    from pathlib import Path

    import pyarrow.parquet as pq

    from pslib.data.atomic_files import atomic_output, refuse_existing
    from pslib.scoring.scored_file import refuse_format
    from rec_models.saved import load

    refuse_format(out, "a Parquet file")
    refuse_existing(Path(out), overwrite=overwrite)
    model = load(checkpoint, items=data)
    found = model.vectors_by_name(field)
    with atomic_output(Path(out)) as place:
        pq.write_table(found, place)
    dim = found.schema[found.num_columns - 1].type.list_size
    plain = {"rows": found.num_rows, "dim": dim, "out": out}
    show(plain, [f"{found.num_rows:,} vectors of {dim} numbers  {out}"], as_json)
    return EXIT_DONE
