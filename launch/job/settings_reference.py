"""Settings of the job file for people and editors, from the classes that check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from difflib import get_close_matches
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from launch.job.errors import meant_setting, section_in
from launch.job.job import Job
from launch.job.sections import RANGED
from pslib.errors import ConfigurationError
from pslib.settings import Setting, Settings, settings_of
from pslib.table.initializers import Initializer
from pslib.table.optimizers import OPTIMIZERS, Optimizer
from pslib.table.schedules import SCHEDULES, Schedule
from rec_models import MATCHING_MODELS, MODELS, SESSION_MODELS, TASK_MODELS, Model
from rec_models.by_name import EVERY, options_of

INTRODUCTION = """# Settings of the job file

Written from the classes that check them by `pslib config page`; `pslib config schema` writes the
same for editors, `pslib config show training` for a terminal. Only `data.train`, `data.schema` and
`model.name` are required. A job file is read as [job_file.md](../guide/job_file.md) says.
`pslib.Trainer(...)` takes the settings of `training` under the same names.
"""
_SECTIONS: Mapping[str, str] = {
    "data": """Paths are a file, a folder, a pattern or a list. Streams:
[data.md](../guide/data.md#a-stream-of-files). A field of `dense`, `sparse` or `ragged` is a column
name, or a mapping such as

- `{name: shows, log1p: true, fill: 0}` (dense),
- `{name: ad, vocabulary: item}` (sparse: shares the keys of `item`),
- `{name: hour, of: time, take: hour}` (sparse, made of a timestamp),
- `{name: age_group, of: age, buckets: [18, 25, 40]}` (sparse, made of a number),
- `{name: user_city, of: [user, city]}` (sparse, crossed; see
  [features.py](../../pslib/data/features.py)),
- `{name: history, pooling: sum}` (ragged).
""",
    "model": f"""Names: {", ".join(MODELS)}. Of several labels: {", ".join(TASK_MODELS)}. Ranking items:
{", ".join((*SESSION_MODELS, *MATCHING_MODELS))}. All other keys are
options of the model: `pslib config show model.deepfm`.
""",
    "optimizers": """`rows` is one optimizer for all parts of a row, `{name: Adagrad, learning_rate:
0.05}`, or one a part, `{w: {...}, v: {...}}`, with `"*"` for the other parts. Names and numbers:
[Optimizers](#optimizers-1).
""",
    "training": """- **Consistency.** `async`: each trainer runs at most `staleness` batches ahead
  of its own pushes. `sync`: the k-th batches of all trainers are one step, repeatable bit for bit
  and as slow as the slowest trainer; the run ends when a trainer dies. `ssp`: like async, and no
  trainer is more than `ssp_bound` batches ahead of the slowest one. `geo`: each trainer steps a
  local copy and sends weight deltas every `geo_every_batches` batches.
- **Schedules** change learning rates over batches: `{name: Cosine, batches: 20000, warmup: 500,
  floor: 0.01}`; see [Schedules](#schedules). FTRL takes neither a schedule nor damping. Staleness:
  [metrics](metrics.md#staleness).
- **Early stopping** needs `data.valid`; `{}` takes the defaults. Watch log loss: AUC rises on while
  a model becomes overconfident. The rates need no schedule then: the first plateau lowers them, and
  a schedule that falls from the first epoch on overfits sooner. The best epoch is kept in
  `OUT/best`. FTRL takes only `factor: 1`.
- **Row cache.** Only without it is staleness 0 exact. A row that this trainer's own gradients keep
  moving is pulled again after 8 times `age_batches`. The summary counts the saved bytes.
- **Products in bfloat16.** Rounded are factors of products with the weights of fully connected
  layers, and of those that give gradients of weights, where both sides of the matrix are at least
  32. Elsewhere nothing is rounded, and the log says so. `--resume` may change the setting. A model
  with its own products, such as a PyTorch network, is refused.
- **Maintenance** acts at the end of a lease in which the number of trained batches passes a
  multiple of `maintain_every_batches`; `table.eviction` needs it.

In a script: `pslib.Trainer(..., consistency="ssp", schedule=pslib.Cosine(batches=20_000),
cache=pslib.CacheSettings(8), wire=pslib.WireFormat(rows="bfloat16"))` and `trainer.fit(data,
epochs=50, valid=valid, stopping=pslib.EarlyStopping(), best="best")`; a model that ranks items
takes `trainer.fit_and_rank(data, valid, ...)`.
""",
    "table": """An example of all of them is in
[job_file.md](../guide/job_file.md#when-the-table-does-not-fit), the rules and their sources in
[policies.py](../../pslib/table/policies.py). Ages are in the unit of `clock`.
""",
    "cluster": "Exit of a process: [operate.md](../guide/operate.md#asked-to-leave).\n",
    "serve": "Pods of `pslib serve` on Kubernetes: [deploy.md](../guide/deploy.md#scorers).\n",
    "load": "Partial loads: [checkpoints.md](../guide/checkpoints.md#partial-loads).\n",
}
"""Introductions of sections, beside the help of each setting."""
_OPTIMIZERS = """Formulas and sources: [optimizers.py](../../pslib/table/optimizers.py). Not for
dense parameters: `RowwiseAdagrad`.

- `weight_decay`: before a step, weights are multiplied by `1 - learning_rate * weight_decay`, once
  for each step of the training since the row's last push, so that a rare row decays as a frequent
  one does. Not for FTRL, which has `l2`.
- `clip_norm`: a row's gradient is shortened to this L2 norm, for each part by itself. Rows only.
- `cowclip_ratio`, `cowclip_floor`: the same with a bound that grows with the row's weights `w` and
  with how many examples of the batch show its key, `shows * max(ratio * |w|, floor)`. Made for
  large batches. Rows only.
- Momentum, Adam and AdamW are lazy: the state of a row moves only when it is touched. AdamL2 takes
  the missed steps, by L2.
- FTRL: `learning_rate` is alpha; with `l1`, weights are exactly 0 until their gradients agree. All
  but alpha are the paper's divided by the rows of a batch, since gradients here are of a mean.
"""
_WORDS: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    list: "list",
    tuple: "list",
    dict: "mapping",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Texts about one setting."""

    path: str
    kind: str
    default: str
    bounds: str
    unit: str
    help: str
    choices: tuple[str, ...]
    models: tuple[str, ...] = ()
    """Models that have the option; none for a setting of the job file."""


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of the job file, for editors with a YAML language server."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    schema["$defs"]["ModelSection"] |= _schema_of_models(schema["$defs"]["ModelSection"]["properties"])
    for section, names in RANGED.items():  # as `launch.job.sections.of_ranges` reads them
        own = schema["$defs"][f"{section.capitalize()}Section"]["properties"]
        for name in names:
            number = {key: value for key, value in own[name].items() if key not in ("default", "description")}
            of_both = {"properties": {"min": number, "max": number}, "required": ["min", "max"]}
            span = {"type": "object", **of_both, "additionalProperties": False}
            about = {key: value for key, value in own[name].items() if key not in number}
            own[name] = {"anyOf": [number, span], **about}
    for section in schema["$defs"].values():
        for setting in section.get("properties", {}).values():
            if setting.get("default") == inf:  # JSON has no infinity
                del setting["default"]
    return schema


def _schema_of_models(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the JSON Schema that has the options of the model that ``model.name`` names."""
    cases = []
    for name, kind in EVERY.items():
        options = {
            option: TypeAdapter[Any](cast("Any", Annotated[hint, setting])).json_schema()
            for option, (hint, setting) in options_of(kind).items()
        }
        then = {"properties": {**own, **options}, "additionalProperties": False}
        cases.append({"if": {"properties": {"name": {"const": name}}}, "then": then})
    return {"properties": {"name": own["name"] | {"enum": list(EVERY)}}, "allOf": cases}


def option_rows(names: Iterable[str] = tuple(EVERY)) -> list[Row]:
    """Return a row for each option of some models; one for all models where it is the same."""
    found: dict[Row, list[str]] = {}
    for name in names:
        for row in rows_of(EVERY[name], "model."):
            found.setdefault(row, []).append(name)
    rows = [replace(row, models=tuple(models)) for row, models in found.items()]
    return sorted(rows, key=lambda row: row.path)


def rows_of(section: Any, path: str = "") -> Iterator[Row]:
    """Yield a row for each setting of a section and of those inside it, in the order of the classes."""
    for name, hint, default, setting in _settings(section):
        inner = None if setting.kinds else section_in(hint)
        if inner is not None and _is_list(hint):
            yield from rows_of(inner, f"{path}{name}.N.")
        elif inner is not None:
            yield from rows_of(inner, f"{path}{name}.")
        else:
            told = f"{setting.help} For example {setting.plain_example}." if setting.kinds else setting.help
            kind = _kind(hint)
            choices = ("true", "false") if kind == _WORDS[bool] else setting.choices
            yield Row(f"{path}{name}", kind, default, setting.bounds, setting.unit, told, choices)


def settings_page() -> str:
    """Return the text of ``docs/reference/settings.md``."""
    lines = [INTRODUCTION]
    by_section: dict[str, list[Row]] = {}
    for row in rows_of(Job):
        by_section.setdefault(row.path.partition(".")[0] if "." in row.path else "", []).append(row)
    for section, rows in by_section.items():
        lines += [f"## {f'`{section}`' if section else 'Beside the sections'}\n"]
        lines += [_SECTIONS[section]] if section in _SECTIONS else []
        lines += _table(rows)
        lines += ["### Options of models\n", *_table_of_options()] if section == "model" else []
    shared = {(one.name, one.default) for one in fields(Optimizer)}
    lines += ["## Optimizers\n", "| name | its own settings |", "|---|---|"]
    for name, kind in OPTIMIZERS.items():
        own = (one for one in fields(kind) if (one.name, one.default) not in shared)
        lines.append(f"| `{name}` | {_with_defaults(own)} |")
    lines.append(
        f"\nEach also takes {_with_defaults(fields(Optimizer))}, where it has no default of its own.\n"
    )
    lines.append(_OPTIMIZERS)
    lines += ["## Schedules\n", *_table([*_of_schedules()])]
    return "\n".join(lines)


def _with_defaults(found: Iterable[Field[Any]]) -> str:
    return ", ".join(f"`{one.name}: {one.default}`" for one in found)


def _of_schedules() -> Iterator[Row]:
    """Yield the own settings of each schedule, then the shared ones."""
    shared = list(rows_of(Schedule, "NAME."))
    for name, kind in SCHEDULES.items():
        yield from list(rows_of(kind, f"{name}."))[len(shared) :]
    yield from shared


def settings_at(path: str) -> list[Row]:
    """Return the settings at a path or below it.

    Raises
    ------
    ConfigurationError
        When there are none.
    """
    model = path.removeprefix("model.")
    if model in EVERY and model != path:
        return [replace(row, models=()) for row in option_rows([model])]
    rows = [*rows_of(Job), *option_rows()]
    found = [row for row in rows if not path or row.path == path or row.path.startswith(f"{path}.")]
    if not found:
        near = map(repr, get_close_matches(path, [row.path for row in rows], n=1))
        meant = meant_setting(Job, path) or next(near, "")
        raise ConfigurationError(f"{path}: no such setting{f', did you mean {meant}?' if meant else ''}")
    return found


def settings_text(path: str) -> str:
    """Return two lines for each setting at a path or below it."""
    return "".join(
        f"{row.path}: {row.kind}{f', {row.bounds}' if row.bounds else ''}"
        f"{f' {row.unit}' if row.unit else ''}, default {row.default or 'none'}\n    {row.help}"
        f"{_of_models(row)}\n"
        for row in settings_at(path)
    )


def _settings(section: Any) -> Iterator[tuple[str, Any, str, Setting]]:
    """Yield name, type, default and Setting of each field."""
    if issubclass(section, Settings):
        defaults = {one.name: one.default for one in fields(section)}
        known = options_of(section) if issubclass(section, Model) else settings_of(section)
        for name, (hint, setting) in known.items():
            yield name, hint, _shown(defaults[name]), setting or Setting("")
        return
    for name, field in section.model_fields.items():
        setting = next((one for one in field.metadata if isinstance(one, Setting)), Setting(""))
        default = "required" if field.is_required() else _shown(field.default)
        yield name, field.annotation, default, setting


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple)


def _kind(hint: Any) -> str:
    if hasattr(hint, "__metadata__"):
        return _kind(hint.__origin__)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in get_args(hint) if one is not NoneType))
    return _WORDS.get(get_origin(hint) or hint, "mapping")


def _shown(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, Optimizer | Initializer):
        return _named(value)
    if isinstance(value, BaseModel | Settings | Schedule) or value in (None, ()):
        return ""
    if isinstance(value, tuple):
        return str(list(value))
    if isinstance(value, bool):
        return str(value).lower()
    return ".inf" if value == inf else str(value)  # as YAML reads it


def _named(value: Optimizer | Initializer) -> str:
    """Return the mapping that names a value, with the numbers that are not the defaults of its class."""
    first, *others = fields(type(value))
    told = [first, *(one for one in others if getattr(value, one.name) != one.default)]
    numbers = (f"{one.name}: {getattr(value, one.name)}" for one in told)
    return f"{{name: {', '.join([type(value).__name__, *numbers])}}}"


def _of_models(row: Row) -> str:
    return f" Of {', '.join(row.models)}." if 0 < len(row.models) < len(EVERY) else ""


def _table_of_options() -> list[str]:
    """Return the options of models as a table, one row an option and default."""
    head = ["| option | type | default | bounds | what | models |", "|---|---|---|---|---|---|"]
    cells = (
        (f"`{row.path.removeprefix('model.')}`", row.kind, row.default, row.bounds, row.help, _models(row))
        for row in option_rows()
    )
    return [*head, *("| " + " | ".join(cell) + " |" for cell in cells), ""]


def _models(row: Row) -> str:
    return "all" if len(row.models) == len(EVERY) else ", ".join(f"`{name}`" for name in row.models)


def _table(rows: list[Row]) -> list[str]:
    head = ["| setting | type | default | bounds | unit | what |", "|---|---|---|---|---|---|"]
    cells = ((f"`{r.path}`", r.kind, r.default, r.bounds, r.unit, r.help) for r in rows)
    return [*head, *("| " + " | ".join(one.replace("|", "\\|") for one in row) + " |" for row in cells), ""]
