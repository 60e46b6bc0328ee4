"""``pslib export``: a trained model for other tools."""

from __future__ import annotations

from launch.cli.command import (
    FILE,
    FOLDER,
    choice,
    command,
    flag,
    json_option,
    option,
    overwrite_option,
    progress_bar,
    show,
)
from launch.cli.predict import checkpoint_argument
from pslib.errors import EXIT_DONE, ConfigurationError


@command(
    "export",
    """
pslib export runs/clicks/checkpoint --to onnx --out model-package
pslib export runs/clicks/checkpoint --to parquet --out tables --state
pslib export runs/movies/checkpoint --to faiss --data movies.parquet --out index
pslib export runs/clicks/checkpoint --to faiss --field city --data clicks.csv --out cities
""",
)
@checkpoint_argument
@choice(
    "--to",
    ("onnx", "numpy", "parquet", "torch", "faiss"),
    "onnx: a folder that scores without pslib; numpy: an .npz; parquet: a folder of tables; torch: a folder "
    "of state dict and rows; faiss: a folder of an index of vectors and their ids",
    required=True,
)
@option("--out", "PATH", "the file or folder that is written", FOLDER, required=True)
@option("--field", "NAME", "for faiss: whose vectors (default: item, of a model that ranks items)")
@option("--data", "PATH", "for faiss: where the items or values are: a file or a folder", FILE)
@flag("--state", "for parquet: with the optimizers' numbers")
@flag("--columns", "for parquet: a column a float (v_0, v_1, ...) in place of lists")
@overwrite_option
@json_option
def export_command(
    checkpoint: str,
    to: str,
    out: str,
    field: str | None,
    data: str | None,
    state: bool,
    columns: bool,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write a trained model for other tools: ONNX, NumPy, Parquet, PyTorch, faiss."""
    from pslib.checkpoint import newest, newest_of_run, read_manifest
    from pslib.storage import place_of, shown
    from pslib.text import counted
    from rec_models.export.formats import OF_FORMATS, export

    given = {"field": field, "among": data, "state": state, "columns": columns}
    if wrong := [name for name, value in given.items() if value and OF_FORMATS[name] != to]:
        options = {name: "data" if name == "among" else name for name in wrong}
        raise ConfigurationError(
            *(f"--{options[name]} is of --to {OF_FORMATS[name]} alone" for name in wrong)
        )
    if to == "faiss" and data is None:
        raise ConfigurationError("--data: expected where the items or values are, got none")
    path = newest(newest_of_run(place_of(checkpoint)))
    entries = read_manifest(path).files
    rows = sum(entry.rows for entry in entries if entry.table and entry.kind == "rows")
    with progress_bar("export", rows if to == "parquet" else None, " rows") as progress:
        files = export(
            path,
            to,
            out,
            overwrite=overwrite,
            field=field,
            among=data,
            state=state,
            columns=columns,
            progress=progress,
        )
    lines = [f"{counted(rows, 'row')} in {counted(len(files), 'file')}", *files]
    show({"path": shown(path), "to": to, "rows": rows, "files": files}, lines, as_json)
    return EXIT_DONE
