"""``pslib k8s``: manifests of a job for Kubernetes, and thin calls of kubectl."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from launch.cli.command import (
    FOLDER,
    argument,
    choice,
    flag,
    group,
    job_options,
    option,
    overwrite_option,
    trainers_option,
)
from pslib.errors import EXIT_DONE

ROLES = ("coordinator", "server", "trainer", "scorer")
namespace_option = option("--namespace", "NAME", "default: that of kubectl's context")
name_argument = argument("name", "NAME", "of the job, as it was rendered")


@group(
    "k8s",
    """
pslib k8s render clicks.yaml --image registry/pslib:1 --mount clicks:/data --out k8s
pslib k8s apply k8s
pslib k8s status clicks
""",
)
def k8s_command() -> None:
    """Write the manifests of a job for Kubernetes, and look after it with kubectl."""


@k8s_command.command(
    "render",
    examples="""
pslib k8s render clicks.yaml --image registry/pslib:1 --mount clicks:/data --out k8s
pslib k8s render clicks.yaml --image registry/pslib:1 --env-from s3-access --rows 2e9 --queue team-a --out k8s
""",
)
@job_options
@trainers_option
@option("--image", "IMAGE", "container image with pslib (see Dockerfile)", required=True)
@option("--out", "DIR", "folder for base/ and overlays/ (default: k8s)", FOLDER, default="k8s")
@option("--name", "NAME", "of the job in Kubernetes (default: that of the file)")
@option(
    "--mount",
    "CLAIM:/path[:ro]",
    "a volume that all pods see, for data and checkpoints; may be repeated",
    to="mounts",
    multiple=True,
)
@option("--env-from", "SECRET", "variables of all pods (object stores); may be repeated", multiple=True)
@option("--storage-class", "NAME", "of the volumes of servers and coordinator (default: the cluster's)")
@option("--rows", "N", "rows of the full table, 2e9: memory of a server as pslib plan counts it", float)
@option("--server-memory", "SIZE", "as 16Gi (default: from --rows, else 4Gi or server_memory_bytes)")
@option("--trainer-memory", "SIZE", "as 4Gi (default)", default="4Gi")
@option("--scorer-memory", "SIZE", "of a job with serve, as 4Gi (default)", default="4Gi")
@option("--server-cpu", "N", "cores asked for (default: one more than shard_threads)")
@option("--trainer-cpu", "N", "cores asked for (default: 4, or training.compute_threads)")
@option("--scorer-cpu", "N", "cores asked for (default: serve.threads)")
@option("--queue", "NAME", "queue of Kueue, for the overlay kueue")
@option("--keys", "DIR", "of pslib keys make (default: new ones, in the manifests)", FOLDER)
@flag("--insecure-network", "no keys: no encryption between the pods")
@overwrite_option
def render_command(
    config: str,
    servers: int | None,
    trainers: int | None,
    overrides: tuple[str, ...],
    image: str,
    out: str,
    name: str | None,
    mounts: tuple[str, ...],
    env_from: tuple[str, ...],
    storage_class: str | None,
    rows: float | None,
    server_memory: str | None,
    trainer_memory: str,
    scorer_memory: str,
    server_cpu: str | None,
    trainer_cpu: str | None,
    scorer_cpu: str | None,
    queue: str | None,
    keys: str | None,
    insecure_network: bool,
    overwrite: bool,
) -> int:
    """Write plain, commented manifests of a job: a Kustomize base, and overlays for JobSet, TrainJob, Kueue.

    Nothing is sent to a cluster. Paths of the job file are those of the pods: on a volume (--mount) or URIs.
    """
    from launch.cli.command import read_job_with
    from launch.places.keys import keys_of_run
    from launch.places.kubernetes.manifests import Mount, job_for_pods, name_of
    from launch.places.kubernetes.render import Wanted, options_of, write_manifests

    given = [Mount.of_text(text) for text in mounts]
    job = job_for_pods(read_job_with(config, overrides, servers, trainers), given)
    wanted = Wanted(rows, server_memory, trainer_memory, scorer_memory, server_cpu, trainer_cpu, scorer_cpu)
    options = options_of(
        job,
        wanted,
        name=name or name_of(Path(config).stem),
        image=image,
        mounts=given,
        env_from=env_from,
        storage_class=storage_class,
        queue=queue,
        keys=keys_of_run(keys, ("pods",), insecure_network),
    )
    for line in write_manifests(Path(out), job, options, overwrite):
        print(line)
    return EXIT_DONE


@k8s_command.command("apply", examples="pslib k8s apply k8s\npslib k8s apply k8s --overlay jobset")
@argument("folder", "DIR", "folder of pslib k8s render", FOLDER)
@choice("--overlay", ("jobset", "trainjob", "kueue"), "in place of the base")
@namespace_option
def apply_command(folder: str, overlay: str | None, namespace: str | None) -> int:
    """Create a job from its manifests: kubectl apply --kustomize."""
    from launch.places.kubernetes.kubectl import Kubectl

    return Kubectl(namespace).apply(Path(folder), overlay)


@k8s_command.command("status", examples="pslib k8s status clicks")
@name_argument
@namespace_option
def status_command(name: str, namespace: str | None) -> int:
    """Show the pods of a job, and what pslib doctor finds."""
    from launch.places.kubernetes.kubectl import Kubectl

    return Kubectl(namespace).status(name)


@k8s_command.command("logs", examples="pslib k8s logs clicks --role trainer --follow")
@name_argument
@choice("--role", ROLES, "of these processes only")
@flag("--follow", "go on with new lines")
@namespace_option
def logs_command(name: str, role: str | None, follow: bool, namespace: str | None) -> int:
    """Show the lines of a job's processes: kubectl logs."""
    from launch.places.kubernetes.kubectl import Kubectl

    return Kubectl(namespace).logs(name, role, follow)


@k8s_command.command("scale", examples="pslib k8s scale clicks --servers 4 --trainers 8")
@name_argument
@option("--servers", "N", "so many shall own all rows", click.IntRange(1, 4096))
@option("--trainers", "N", "so many shall train", click.IntRange(1, 65536))
@option("--scorers", "N", "so many shall serve, where no autoscaler decides it", click.IntRange(0, 65536))
@namespace_option
def scale_command(
    name: str, servers: int | None, trainers: int | None, scorers: int | None, namespace: str | None
) -> int:
    """Change the numbers of processes of a running job; rows move before a server ends."""
    from launch.places.kubernetes.kubectl import Kubectl

    if servers is None and trainers is None and scorers is None:
        raise click.UsageError("expected --servers N, --trainers N or --scorers N")
    return Kubectl(namespace).scale(name, servers, trainers, scorers)


@k8s_command.command("delete", examples="pslib k8s delete clicks --with-state")
@name_argument
@flag("--with-state", "its volumes too: update logs and journal; without, the job goes on when applied again")
@namespace_option
def delete_command(name: str, with_state: bool, namespace: str | None) -> int:
    """Delete a job from Kubernetes."""
    from launch.places.kubernetes.kubectl import Kubectl

    return Kubectl(namespace).delete(name, with_state)
