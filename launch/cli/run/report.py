"""``pslib report``."""

from __future__ import annotations

import sys
from pathlib import Path

from launch.cli.command import FILE, FOLDER, argument, command, flag, option, overwrite_option
from pslib.errors import EXIT_DONE


@command(
    "report",
    """
pslib report runs/clicks
pslib report runs/clicks runs/clicks-2 --out compared.html
pslib report runs/a runs/b --predictions scores-a --predictions scores-b
""",
)
@argument(
    "runs",
    "RUN...",
    "folders of runs; the first is what others are compared with",
    FOLDER,
    nargs=-1,
    required=True,
)
@option("--out", "FILE", "the HTML file (default: report.html)", FILE, default="report.html")
@option(
    "--predictions",
    "DIR",
    "of a run, once for each in their order, as pslib eval writes them; default: the checkpoints are "
    "evaluated, where the job files name the same test data",
    FOLDER,
    multiple=True,
)
@flag("--no-eval", "evaluate no checkpoint")
@overwrite_option
def report_command(
    runs: tuple[str, ...], out: str, predictions: tuple[str, ...], no_eval: bool, overwrite: bool
) -> int:
    """Write charts, figures and settings of runs into one HTML file, and what differs between them.

    The file needs no network and has no script. Of several runs it has the curves on top of each other, the
    settings that differ, and the difference of the AUC with its interval.
    """
    from launch.runs.report import check_predictions, compared, read_runs
    from pslib.data.atomic_files import atomic_output, refuse_existing
    from pslib.monitor.report import differing_settings, page

    check_predictions(runs, predictions)
    refuse_existing(Path(out), overwrite=overwrite)
    read = read_runs(runs)
    comparisons, notes = compared(read, predictions, not no_eval)
    with atomic_output(Path(out)) as file:
        file.write_text(page(read, comparisons, notes), encoding="utf-8")
    if len(read) > 1:
        for name, values in differing_settings(read).items():
            print(f"{name}: {', '.join(values)}")
    for one in comparisons:
        interval = f"{one.auc.low:+.5f} to {one.auc.high:+.5f}"
        print(f"AUC of {one.name} less {read[0].name}: {one.auc.value:+.5f} ({interval})")
    for note in notes:
        print(f"pslib: {note}", file=sys.stderr)
    print(out)
    return EXIT_DONE
