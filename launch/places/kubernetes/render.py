"""Sizes of a job's pods, and the files of its manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launch.job.job import Job
from launch.places.kubernetes.manifests import (
    OBJECT_NAME,
    Mount,
    PodSize,
    RenderOptions,
    manifests_of,
    name_of,
    quantity,
    storage_of,
)
from pslib.errors import ConfigurationError
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.transport import Keys

SERVER_BYTES = 4 << 30
"""Default memory of a server, where neither ``--rows`` nor ``server_memory_bytes`` gives one."""
COORDINATOR = PodSize("1", "1Gi")
"""Default of a coordinator; its memory with thousands of processes was not measured."""
IMAGE = re.compile(
    r"[a-z0-9][\w.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9_.-]*)*(:\w[\w.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?",
    re.ASCII | re.IGNORECASE,
)
"""Name of an image with its registry, tag and digest."""
LABEL_CHARS_MAX = 63
"""Longest value of a label, which the name of a queue is."""
MEMORY_MIN, MEMORY_MAX = 64 << 20, 1 << 50
"""Bounds of a pod's memory in bytes: a Python process needs more, and no machine has so much."""
CORES_MAX = 4096
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Sizes as they are asked for on the command line; None: as the job needs them."""

    rows: float | None = None
    server_memory: str | None = None
    trainer_memory: str = "4Gi"
    scorer_memory: str = "4Gi"
    server_cpu: str | None = None
    trainer_cpu: str | None = None
    scorer_cpu: str | None = None


def options_of(
    job: Job,
    wanted: Wanted,
    *,
    name: str,
    image: str,
    mounts: Sequence[Mount],
    env_from: Sequence[str],
    storage_class: str | None,
    queue: str | None,
    keys: Mapping[str, Keys] | None,
) -> RenderOptions:
    """Return the options of manifests, with sizes of all pods.

    Raises
    ------
    ConfigurationError
        When a size or a name is wrong.
    """
    if not IMAGE.fullmatch(image):
        raise ConfigurationError(f"--image: expected an image as registry/pslib:1, got {image!r}")
    if name_of(name) != name:
        raise ConfigurationError(
            f"--name: expected up to 40 lower case letters, digits and -, got {name!r}; "
            f"try --name {name_of(name)}"
        )
    others = {"--env-from": env_from, "--storage-class": [storage_class], "--queue": [queue]}
    for option, names in others.items():
        if wrong := [one for one in names if one is not None and not OBJECT_NAME.fullmatch(one)]:
            raise ConfigurationError(f"{option}: expected a name as team-a, got {wrong[0]!r}")
    if queue is not None and len(queue) > LABEL_CHARS_MAX:
        raise ConfigurationError(f"--queue: expected up to {LABEL_CHARS_MAX} characters, got {len(queue)}")
    paths = [mount.path for mount in mounts]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ConfigurationError(f"--mount: {twice[0]}: expected one volume there, got {len(twice)}")
    memory = wanted.server_memory or quantity(server_bytes(job, wanted.rows))
    cpu = wanted.server_cpu or str(job.cluster.shard_threads + 1)
    trainer_cpu = wanted.trainer_cpu or str(job.training.compute_threads or 4)
    sizes = {
        "coordinator": COORDINATOR,
        "server": _size("--server", cpu, memory),
        "trainer": _size("--trainer", trainer_cpu, wanted.trainer_memory),
    }
    if job.serve is not None:
        scorer_cpu = wanted.scorer_cpu or str(job.serve.threads)
        sizes["scorer"] = _size("--scorer", scorer_cpu, wanted.scorer_memory)
    return RenderOptions(
        name,
        image,
        sizes=sizes,
        server_storage=storage_of(job, bytes_of("--server-memory", memory)),
        mounts=mounts,
        env_from=env_from,
        storage_class=storage_class,
        queue=queue,
        keys=keys,
    )


def server_bytes(job: Job, rows: float | None) -> float:
    """Return the memory of a server in bytes: of its share of ``rows``, else of the job's limit."""
    from pslib.planner.coefficients import shipped_coefficients
    from pslib.planner.plan import HEADROOM
    from pslib.planner.workload import Workload

    costs = shipped_coefficients()
    if rows is not None:
        work = Workload(rows, job.table_of(job.build_model()))
        tables = rows / job.cluster.servers * costs.row_bytes(work.payload_bytes) / HEADROOM
    elif job.cluster.server_memory_bytes:
        tables = float(job.cluster.server_memory_bytes)
    else:
        return float(SERVER_BYTES)
    return tables + costs.server_process_bytes + job.cluster.credit_bytes


def _size(option: str, cpu: str, memory: str) -> PodSize:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)|([0-9]{1,9})m", cpu)
    cores = 0.0 if found is None else float(found[1] or int(found[2]) / 1000)
    if not 0.001 <= cores <= CORES_MAX:
        raise ConfigurationError(
            f"{option}-cpu: expected cores as 4 or 500m, from 1m to {CORES_MAX}, got {cpu!r}"
        )
    bytes_of(f"{option}-memory", memory)
    return PodSize(cpu, memory)


def bytes_of(option: str, size: str) -> float:
    """Return the bytes of a size as Kubernetes writes it.

    Raises
    ------
    ConfigurationError
        When it is none.
    """
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)(Ki|Mi|Gi|Ti|k|M|G)?", size)
    size_bytes = 0.0 if found is None else float(found[1]) * _UNITS.get(found[2] or "", 1)
    if not MEMORY_MIN <= size_bytes <= MEMORY_MAX:
        bounds = f"from {quantity(MEMORY_MIN)} to {quantity(MEMORY_MAX)}"
        raise ConfigurationError(f"{option}: expected a size as 16Gi or 800Mi, {bounds}, got {size!r}")
    return size_bytes


def write_manifests(out: Path, job: Job, options: RenderOptions, overwrite: bool) -> list[str]:
    """Write the manifests of a job; return lines about them for people.

    Raises
    ------
    ConfigurationError
        When there are some in the folder, or it can't be written; nothing is changed then.
    """
    made = manifests_of(job, options)
    if (out / "base").exists() and not overwrite:
        raise ConfigurationError(f"{out / 'base'}: exists; give another --out, or --overwrite")
    try:
        for name, text in made.items():
            file = out / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.touch(0o600 if name.endswith("keys.yaml") else 0o644)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename or out}: {error.strerror}; give another --out") from error
    return _lines(out, len(made), job, options)


def _lines(out: Path, files: int, job: Job, options: RenderOptions) -> list[str]:
    sizes, cluster = options.sizes, job.cluster
    server, trainer = sizes["server"], sizes["trainer"]
    lines = [
        f"{out}: {files} files of {options.name}, image {options.image}",
        f"coordinator   1 pod, {sizes['coordinator'].memory}, volume {options.coordinator_storage}",
        f"servers       {counted(cluster.servers, 'pod')}, {server.cpu} cores, {server.memory}, "
        f"volume {options.server_storage} each",
        f"trainers      {counted(cluster.trainers, 'pod')}, {trainer.cpu} cores, {trainer.memory} each",
    ]
    if job.serve is not None:
        scorer, most = sizes["scorer"], job.serve.replicas_max
        many = f"{job.serve.replicas} to {most} pods" if most else counted(job.serve.replicas, "pod")
        lines.append(f"scorers       {many}, {scorer.cpu} cores, {scorer.memory} each")
    if options.keys is not None:
        lines.append(f"keys          {out}/base/keys.yaml has secrets: keep it out of version control")
    return [*lines, f"next          pslib k8s apply {out}"]
