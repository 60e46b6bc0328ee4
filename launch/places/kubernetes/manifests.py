"""Manifests of a job for Kubernetes: a Kustomize base, and overlays for JobSet, Kubeflow Trainer and Kueue.

The files in ``templates/`` are the manifests; this module fills in names, numbers and paths. A line that is
only ``$name`` stands for any number of lines, at its indentation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import indent
from typing import TYPE_CHECKING

from launch.job.job import Job, saved_place, unfinished_place
from launch.job.sections import ServeSection
from pslib.errors import ConfigurationError
from pslib.serving.settings import ServeSettings
from pslib.settings import settings_of
from pslib.storage import is_uri, shown

if TYPE_CHECKING:
    from pslib.transport import Keys

STATE = "/var/lib/pslib"
"""Folder of a pod's own volume: update log, journal, records."""

OWN_PATHS = (STATE, "/etc/pslib", "/tmp")
"""Folders of a pod that pslib makes: no volume may lie over them."""

OBJECT_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""Names of objects of Kubernetes that are made by others."""

NAME_CHARS_MAX = 40
"""Longest name of a job: names of pods are longer, and Kubernetes takes 63 characters."""

JOB_BYTES_MAX = 200_000
"""Longest job file in a ConfigMap: kubectl keeps a copy of an object in its annotations, at most 256 KiB."""

END_S = 30
"""Time after `drain_s` in which a process writes its last records before it is killed."""

DEATHS_MIN = 10
"""Least deaths of one trainer before its Job fails: a node that goes takes a pod without asking."""

UNSEEN_S = 5
"""Time after which all nodes know that a scorer leaves and send it nothing more."""

FILES = ("kustomization", "job", "service", "coordinator", "servers", "trainers", "disruption", "network")
"""Files of the base, beside the keys and those of scorers."""
SCORERS = ("scorers", "scorers-service", "scorers-disruption", "scorers-network")
"""Files of the base of a job with ``serve``; where their number is a range, ``scorers-scaling`` too."""
_ROLES = {"coordinator": "coordinator", "servers": "server", "trainers": "trainer", "scorers": "scorer"}
"""Role of the pods in a file."""
OVERLAYS: Mapping[str, tuple[str, ...]] = {
    "jobset": ("kustomization", "jobset"),
    "trainjob": ("kustomization", "runtime", "trainjob"),
    "kueue": ("kustomization",),
}
"""Files of each overlay."""
_YAML_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Names that YAML reads as something else than a text. A name of a Service begins with a letter."""
_WITH_SHARED_VOLUME = ("jobset", "trainjob")
_OWN_KEYS = {"coordinator": ("server", "admin"), "server": ("server",), "trainer": ("trainer",)}
_OPTIONAL = (
    "identity_env", "keys_env", "ports", "lifecycle", "job_mount", "keys_mount", "state_mount",
    "job_volume", "keys_volume", "state_volume",
)  # fmt: skip
"""Blocks that not every pod has."""
NOTHING = "\0"
"""Stands for a block without lines, which takes its own line along."""
_BLOCK = re.compile(r"^(?P<indent> *)\$(?P<name>\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """Claim of a volume that all pods see: ``CLAIM:/path``, or ``CLAIM:/path:ro``."""

    claim: str
    path: str
    read_only: bool = False

    @staticmethod
    def of_text(text: str) -> Mount:
        """Read the text of ``--mount``.

        Raises
        ------
        ConfigurationError
            When it has another form.
        """
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not OBJECT_NAME.fullmatch(claim) or not re.fullmatch(r"(/(?!\.\.?(/|$))[\w.-]+)+/?", path):
            raise ConfigurationError(f"--mount: expected CLAIM:/path or CLAIM:/path:ro, got {text!r}")
        if mode not in ("", "ro", "rw"):
            raise ConfigurationError(f"--mount: {text!r}: expected ro or rw at its end, got {mode!r}")
        mount = Mount(claim, path.rstrip("/"), mode == "ro")
        for own in OWN_PATHS:
            if mount.holds(own) or Path(path).is_relative_to(own):
                raise ConfigurationError(
                    f"--mount: {path}: expected a path beside {own}, which is pslib's own"
                )
        return mount

    def holds(self, path: str) -> bool:
        """Return whether a path is on the volume."""
        return Path(path).is_relative_to(self.path)


@dataclass(frozen=True, slots=True)
class PodSize:
    """CPU and memory of a pod, as Kubernetes writes them."""

    cpu: str
    memory: str


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options of ``pslib k8s render`` beside the job.

    Attributes
    ----------
    name : str
        Name of the job in Kubernetes, and of its cluster.
    image : str
    mounts : sequence of Mount
    env_from : sequence of str
        Secrets whose entries are environment variables of all pods, as for an object store.
    storage_class : str or None
        Of the volumes of servers and coordinator; None: the cluster's default.
    queue : str or None
        Queue of Kueue; None: no such overlay.
    sizes : mapping of str to PodSize
        Of each role.
    server_storage, coordinator_storage : str
        Sizes of their volumes.
    keys : mapping of str to Keys or None
        Keys by role; None: no encryption.
    """

    name: str
    image: str
    sizes: Mapping[str, PodSize]
    server_storage: str
    coordinator_storage: str = "1Gi"
    mounts: Sequence[Mount] = ()
    env_from: Sequence[str] = ()
    storage_class: str | None = None
    queue: str | None = None
    keys: Mapping[str, Keys] | None = field(default=None, repr=False)


def name_of(text: str) -> str:
    """Return a name that Kubernetes takes for a job: lower case letters, digits and ``-``."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = f"job-{name}".strip("-") if not name[:1].isalpha() or name in _YAML_WORDS else name
    return name[:NAME_CHARS_MAX].strip("-")


def job_for_pods(job: Job, mounts: Sequence[Mount]) -> Job:
    """Return the job as pods run it: its paths are on volumes that they see, its records on their own.

    Raises
    ------
    ConfigurationError
        When a path is on no volume that all pods see, or the job needs a launcher; one line each.
    """
    writable = [mount for mount in mounts if not mount.read_only]
    out = job.out if any(mount.holds(job.out) for mount in writable) else f"{STATE}/run"
    given_out, job = job.out, job.model_copy(update={"out": out})
    problems = [
        f"{what}: expected a URI or a path on a volume that all pods see (--mount CLAIM:/path), got {path}"
        for what, path, seen in _shared_paths(job, given_out, mounts, writable)
        if not is_uri(path) and not any(mount.holds(path) for mount in seen)
    ]
    problems += [
        f"{what}: expected a URI without keys, since the job file is no secret there, got {shown(path)}; "
        "give them to the pods by --env-from SECRET"
        for what, path, _ in _shared_paths(job, given_out, mounts, writable)
        if shown(path) != path
    ]
    if job.cluster.durability == "memory":
        problems.append(
            "cluster.durability: expected log or disk, since a pod that is placed anew goes on from its log; "
            "got memory: add --set cluster.durability=log"
        )
    if job.cluster.recovery == "rollback":
        problems.append("cluster.recovery: expected log or partial on Kubernetes, got rollback")
    if (size := len(job.to_yaml().encode())) > JOB_BYTES_MAX:
        problems.append(
            f"the job file: expected at most {JOB_BYTES_MAX:,} bytes, since a ConfigMap holds it, "
            f"got {size:,}; name folders or patterns in data in place of files"
        )
    if problems:
        raise ConfigurationError(*dict.fromkeys(problems))
    return job


def _shared_paths(
    job: Job, given_out: str, mounts: Sequence[Mount], writable: Sequence[Mount]
) -> Iterator[tuple[str, str, Sequence[Mount]]]:
    """Yield setting, path, and the volumes on which it may be; ``given_out`` is `out` as the file has it."""
    for name in ("train", "valid", "test", "items"):
        for path in getattr(job.data, name) or ():
            yield f"data.{name}", path, mounts
    if job.load is not None:
        yield "load.path", job.load.path, mounts
    if job.checkpoint.path is None:
        yield "out (for checkpoints; or set checkpoint.path)", given_out, writable
    else:
        yield "checkpoint.path", saved_place(job), writable
        yield (
            "checkpoint.path (of a training that is not done; keep_last: 1 has it there)",
            unfinished_place(job),
            writable,
        )
    if job.training.stopping and job.training.stopping.restore:
        yield "out (with training.stopping.restore)", given_out, writable


def storage_of(job: Job, server_memory_bytes: float) -> str:
    """Return the size of a server's volume: its log is cut below the larger of two bounds, and half more."""
    return quantity(1.5 * max(job.cluster.log_bytes, 3 * server_memory_bytes))


def quantity(size_bytes: float) -> str:
    """Return a number of bytes as Kubernetes writes it, in whole MiB or GiB, rounded up."""
    mib = math.ceil(size_bytes / (1 << 20))
    return f"{mib}Mi" if mib < 10240 else f"{math.ceil(mib / 1024)}Gi"


def manifests_of(job: Job, options: RenderOptions) -> dict[str, str]:
    """Return the text of each file, by its path in the folder of the manifests.

    Parameters
    ----------
    job : Job
        From `job_for_pods`.
    options : RenderOptions
    """
    values = _values_of(job, options)
    made = {}
    names = [*FILES, *(["keys"] if options.keys else [])]
    if job.serve is not None:
        names += [*SCORERS, *(["scorers-scaling"] if job.serve.replicas_max else [])]
        values |= _scorers(job.serve)
    for name in names:
        role, own = _ROLES.get(name), {}
        if role == "scorer":
            own = {"pod": _scorer_pod(job, options, values)}
        elif role is not None:
            own = {"pod": _pod(role, options, values, f"{options.name}-coordinator-0")}
        storage = options.server_storage if role == "server" else options.coordinator_storage
        resources = "\n".join(f"- {other}.yaml" for other in names[1:])
        more = {**values, **own, "storage": storage, "resources": resources}
        made[f"base/{name}.yaml"] = filled(f"base/{name}.yaml", more)
    for overlay, parts in OVERLAYS.items():
        if overlay == "kueue" and options.queue is None:
            continue
        made |= _overlay(overlay, parts, job, options, values)
    return made


def _scorers(serve: ServeSection) -> dict[str, str]:
    """Return the values of the files of scorers."""
    number = "" if serve.replicas_max else f"replicas: {serve.replicas}"  # else the autoscaler has it
    return {
        "replicas": str(serve.replicas),
        "replicas_max": str(serve.replicas_max),
        "replicas_line": number,
    }


def _overlay(
    overlay: str, parts: Sequence[str], job: Job, options: RenderOptions, values: Mapping[str, str]
) -> dict[str, str]:
    more = dict(values)
    shared = overlay in _WITH_SHARED_VOLUME
    if shared:
        pods = {
            f"{role}_pod": _pod(role, options, values, f"{options.name}-coordinator-0-0", shared=True)
            for role in _OWN_KEYS
        }
        step = ", trainer.kubeflow.org/trainjob-ancestor-step: trainer"
        # Kubeflow Trainer knows the container of a TrainJob's own image and resources by this name.
        container = "node" if overlay == "trainjob" else "trainer"
        pods["trainer_pod"] = pods["trainer_pod"].replace("- name: trainer", f"- name: {container}", 1)
        more |= pods | {
            "ancestor": step if overlay == "trainjob" else "",
            "trainer_container": container,
        }
        more["replicated_jobs"] = filled("replicated_jobs.yaml", more)
    made = {f"overlays/{overlay}/{part}.yaml": filled(f"{overlay}/{part}.yaml", more) for part in parts}
    if shared:
        servers = job.cluster.servers
        more["storage"] = _times(options.server_storage, servers)
        made[f"overlays/{overlay}/volumes.yaml"] = filled("volumes.yaml", more)
    return made


def _times(size: str, number: int) -> str:
    """Return a size of a volume for some servers."""
    found = re.fullmatch(r"(\d+)(\D*)", size)
    return f"{int(found[1]) * number}{found[2]}" if found else size


def _values_of(job: Job, options: RenderOptions) -> dict[str, str]:
    keys = options.keys or {}
    secrets = {
        f"{role}.keys": keys[role].to_text() for role in ("server", "trainer", "admin") if role in keys
    }
    return {
        "name": options.name,
        "image": options.image,
        "servers": str(job.cluster.servers),
        "trainers": str(job.cluster.trainers),
        "deaths": str(max(job.cluster.restarts, DEATHS_MIN)),
        "grace_s": str(math.ceil(job.cluster.drain_s) + END_S),
        "queue": options.queue or "",
        "job": job.to_yaml(),
        "keys": "\n".join(f"{file}: |\n  {text}" for file, text in secrets.items()),
        "storage_class": f"storageClassName: {json.dumps(options.storage_class)}"
        if options.storage_class
        else "",
    }


def _pod(
    role: str, options: RenderOptions, values: Mapping[str, str], coordinator: str, shared: bool = False
) -> str:
    """Return the ``spec`` of a pod.

    Parameters
    ----------
    role : str
    options : RenderOptions
    values : mapping
    coordinator : str
        Name of the coordinator's pod.
    shared : bool
        True if state is on one volume for all pods, in place of one each.
    """
    name, secret, has_state = options.name, options.keys is not None, role != "trainer"
    items = ", ".join(f"{{key: {one}.keys, path: {one}.keys}}" for one in _OWN_KEYS[role])
    arguments = ["--health", '"8080"', *(["--log", STATE] if has_state else [])]
    arguments += [] if secret or not has_state else ["--insecure-network"]
    own = _OWN_KEYS[role][0]
    blocks = {
        "command": ", ".join(["pslib", "role", role, "/etc/pslib/job/job.yaml", *arguments]),
        "port": "health",
        "ready": "/readyz",
        "live": "/livez",
        "identity_env": f"- {{name: PSLIB_CLUSTER_ID, value: {name}}}\n"
        f"- {{name: PSLIB_COORDINATOR, value: 'tcp://{coordinator}.{name}:7077'}}\n"
        "- name: PSLIB_ADDRESS\n  valueFrom: {fieldRef: {fieldPath: status.podIP}}",
        "keys_env": f"- {{name: PSLIB_KEYS, value: /etc/pslib/keys/{own}.keys}}" if secret else "",
        "ports": {
            "coordinator": "- {name: coordinator, containerPort: 7077}",
            "server": "- {name: server, containerPort: 7078}",
        }.get(role, ""),
        "job_mount": "- {name: job, mountPath: /etc/pslib/job, readOnly: true}",
        "job_volume": f"- name: job\n  configMap: {{name: {name}-job}}",
        "keys_mount": "- {name: keys, mountPath: /etc/pslib/keys, readOnly: true}" if secret else "",
        "keys_volume": f"- name: keys\n  secret:\n    secretName: {name}-keys\n    defaultMode: 0440\n"
        f"    items: [{items}]"
        if secret
        else "",
        "state_mount": f"- {{name: state, mountPath: {STATE}}}" if has_state else "",
        "state_volume": f"- name: state\n  persistentVolumeClaim: {{claimName: {name}-state}}"
        if has_state and shared
        else "",
    }
    return _filled_pod(role, options, options.mounts, {**values, **blocks})


def _scorer_pod(job: Job, options: RenderOptions, values: Mapping[str, str]) -> str:
    """Return the ``spec`` of a pod of `pslib serve`, which sees the volume of the checkpoints only."""
    serve = job.serve
    assert serve is not None
    place = job.checkpoint.path or job.out
    changed = {
        name: getattr(serve, name)
        for name in settings_of(ServeSettings)
        if getattr(serve, name) != getattr(ServeSettings(), name)
    }
    words = [f"{options.name}={place}", "--host", "::", "--port", "8080"]
    for name, value in changed.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    blocks = {
        "grace_s": str(math.ceil(serve.drain_s) + UNSEEN_S + END_S),
        "command": ", ".join(["pslib", "serve", *map(json.dumps, words)]),
        "port": "http",
        "ready": "/v2/health/ready",
        "live": "/v2/health/live",
        "lifecycle": f"lifecycle: {{preStop: {{sleep: {{seconds: {UNSEEN_S}}}}}}}  "
        "# until requests go elsewhere",
    }
    mounts = [replace(mount, read_only=True) for mount in options.mounts if mount.holds(place)]
    return _filled_pod("scorer", options, mounts, {**values, **blocks})


def _filled_pod(role: str, options: RenderOptions, claims: Sequence[Mount], values: Mapping[str, str]) -> str:
    """Return the ``spec`` of a pod with its size, its volumes that others see too, and its variables."""
    size = options.sizes[role]
    mounts = {
        f"data-{number}": (mount.path, mount.claim, mount.read_only) for number, mount in enumerate(claims)
    }
    blocks = {
        "env_from": "envFrom:\n"
        + "\n".join(f"  - secretRef: {{name: {json.dumps(one)}}}" for one in options.env_from)
        if options.env_from
        else "",
        "data_mounts": "\n".join(
            f"- {{name: {volume}, mountPath: {json.dumps(path)}{', readOnly: true' if read_only else ''}}}"
            for volume, (path, _, read_only) in mounts.items()
        ),
        "data_volumes": "\n".join(
            f"- name: {volume}\n  persistentVolumeClaim: {{claimName: {json.dumps(claim)}}}"
            for volume, (_, claim, _) in mounts.items()
        ),
    }
    own = {"role": role, "cpu": size.cpu, "memory": size.memory}
    return filled("pod.yaml", {**dict.fromkeys(_OPTIONAL, ""), **values, **own, **blocks})


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its values; a line that is only ``$name`` is replaced by all lines of the value.

    Parameters
    ----------
    template : str
        Path below ``templates/``.
    values : mapping of str to str
    """
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")

    def block(found: re.Match[str]) -> str:
        return indent(values[found["name"]].rstrip("\n"), found["indent"]).replace("$", "$$") or NOTHING

    return Template(_BLOCK.sub(block, text).replace(f"{NOTHING}\n", "")).substitute(values)
