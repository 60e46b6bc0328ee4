"""Thin calls of kubectl for a job of `launch.places.kubernetes.manifests`; each is printed before it runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.places.kubernetes.manifests import OVERLAYS
from pslib.errors import ConfigurationError, UnavailableError

SHOWN = "statefulsets,jobs,deployments,pods"
KINDS = f"{SHOWN},services,configmaps,secrets,poddisruptionbudgets,networkpolicies,horizontalpodautoscalers"
"""Kinds of the objects of a job, beside those of an overlay."""
VOLUMES = "persistentvolumeclaims"
ADMIN_KEY = "/etc/pslib/keys/admin.keys"
OWNED = r'{range .items[*]}{.kind} {.metadata.name} {.metadata.ownerReferences[*].kind}{"\n"}{end}'
"""Output for the coordinator's objects: kind, name, and the kinds of their owners."""
_TRIES = re.compile(r"E\d{4} \d\d:\d\d:\d\d")
"""Beginning of kubectl's own log lines, one for each try to reach a cluster."""
_UNREACHED = re.compile(r"connection to the server|connect to the server|: dial tcp|in configuration:")
"""Parts of the line with which it gives up."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Caller of kubectl.

    Attributes
    ----------
    namespace : str or None
        None: the one of kubectl's context.
    """

    namespace: str | None = None

    def __post_init__(self) -> None:
        """Refuse to begin without kubectl."""
        if shutil.which("kubectl") is None:
            raise UnavailableError(
                "kubectl: expected it on PATH, got none; install it, or give the manifests to whom has it: "
                "they are plain files (pslib k8s render)"
            )

    def call(self, *words: str) -> int:
        """Run kubectl with its output as it is; return its exit code.

        Raises
        ------
        UnavailableError
            When it reaches no cluster.
        """
        unreached = ""
        with subprocess.Popen(
            self._command(words), stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if _UNREACHED.search(line) and not _TRIES.match(line):
                    unreached = line
                elif not _TRIES.match(line):
                    print(line, end="", file=sys.stderr, flush=True)
        if process.returncode and unreached:
            raise _no_cluster(unreached)
        return process.returncode

    def ask(self, *words: str) -> str:
        """Return kubectl's output.

        Raises
        ------
        UnavailableError
            When it reaches no cluster, or fails, with its last line.
        """
        done = subprocess.run(self._command(words), capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            if _UNREACHED.search(said):
                raise _no_cluster(said)
            raise UnavailableError(f"kubectl ended with exit code {done.returncode}: {said}")
        return done.stdout

    def _command(self, words: Sequence[str]) -> list[str]:
        own = [] if self.namespace is None else ["--namespace", self.namespace]
        command = ["kubectl", *own, *words]
        print(f"+ {shlex.join(command)}", file=sys.stderr, flush=True)
        return command

    # --- a job ------------------------------------------------------------------------------------------

    def apply(self, folder: Path, overlay: str | None) -> int:
        """Apply manifests, or an overlay of them."""
        place = folder / ("base" if overlay is None else f"overlays/{overlay}")
        if not (place / "kustomization.yaml").is_file():
            found = [name for name in OVERLAYS if (folder / "overlays" / name).is_dir()]
            raise ConfigurationError(
                f"{place}: expected manifests of pslib k8s render there"
                + (f"; overlays are {', '.join(found)}" if found else "")
            )
        return self.call("apply", "--kustomize", str(place))

    def status(self, name: str) -> int:
        """Show the objects of a job, then what its coordinator says.

        Raises
        ------
        UnavailableError
            When it has no coordinator.
        """
        pod, kinds = self._found(name)
        code = self.call("get", ",".join((*kinds, SHOWN)), "--selector", selector(name), "--output", "wide")
        if pod is None:
            raise _no_job(name)
        return code or self.call("exec", pod, "--", "pslib", "doctor", *self._keys(name))

    def _found(self, name: str) -> tuple[str | None, tuple[str, ...]]:
        """Return how exec calls the coordinator's pod, and the kinds of the overlay that was applied.

        A StatefulSet's pod has a name of its own. A JobSet calls its jobs NAME-ROLE-0, whose pods' names end
        with letters by chance: exec finds them by the job. A TrainJob makes a JobSet of its own name.
        """
        of_coordinator = f"{selector(name)},app.kubernetes.io/component=coordinator"
        told = self.ask(
            "get", "statefulsets,jobs", "--selector", of_coordinator, "--output", f"jsonpath={OWNED}"
        )
        if not told.strip():
            return None, ()
        kind, own, *owners = told.splitlines()[0].split()
        if "JobSet" not in owners:
            return f"{own}-0" if kind == "StatefulSet" else f"job/{own}", ()
        made = self.ask(
            "get", "jobsets", name, "--output", "jsonpath={.metadata.ownerReferences[*].kind}"
        )  # fmt: skip
        return f"job/{own}", ("trainjobs", "jobsets") if "TrainJob" in made.split() else ("jobsets",)

    def logs(self, name: str, role: str | None, follow: bool) -> int:
        """Show the lines of a job's processes."""
        of_role = "" if role is None else f",app.kubernetes.io/component={role}"
        more = ["--follow"] if follow else []
        how = ("--prefix", "--timestamps", "--tail", "-1", "--max-log-requests", "100")
        return self.call("logs", "--selector", selector(name) + of_role, *how, *more)

    def scale(self, name: str, servers: int | None, trainers: int | None, scorers: int | None) -> int:
        """Change the numbers of a running job's processes; rows move before a server ends.

        Raises
        ------
        ConfigurationError
            If something else decides the number: a JobSet, or the scorers' autoscaler.
        UnavailableError
            When it has no coordinator.
        """
        pod, kinds = self._found(name)
        if pod is None:
            raise _no_job(name)
        if kinds:
            raise ConfigurationError(
                f"{name}: a JobSet keeps the numbers that it began with; pslib k8s delete {name}, then apply "
                "manifests with others, or those in base, whose numbers change"
            )
        if scorers is not None and (code := self._scale_scorers(name, scorers)):
            return code
        code = 0 if servers is None else self._scale_servers(name, servers)
        if trainers is not None and not code:
            patch = json.dumps({"spec": {"parallelism": trainers, "completions": trainers}})
            code = self.call("patch", "job", f"{name}-trainer", "--type", "merge", "--patch", patch)
        return code

    def _scale_scorers(self, name: str, scorers: int) -> int:
        own = f"{name}-scorer"
        if self.ask("get", "horizontalpodautoscaler", own, "--ignore-not-found", "--output", "name").strip():
            raise ConfigurationError(
                f"{name}: an autoscaler sets the number of scorers; change serve.replicas and "
                "serve.replicas_max in the job file, then render and apply it"
            )
        return self.call("scale", "deployment", own, "--replicas", str(scorers))

    def _scale_servers(self, name: str, servers: int) -> int:
        now = int(
            self.ask("get", "statefulset", f"{name}-server", "--output", "jsonpath={.spec.replicas}") or 0
        )
        pods = ("scale", "statefulset", f"{name}-server", "--replicas", str(servers))
        told = ("pslib", "scale", "--servers", str(servers), *self._keys(name))
        rows = ("exec", f"{name}-coordinator-0", "--", *told)
        first, second = (pods, rows) if servers > now else (rows, pods)
        return self.call(*first) or self.call(*second)

    def delete(self, name: str, with_state: bool) -> int:
        """Delete a job; its volumes only if asked to."""
        _, kinds = self._found(name)
        if "trainjobs" in kinds:
            kinds = (*kinds, "clustertrainingruntimes")
        every = (*kinds, KINDS, VOLUMES) if with_state else (*kinds, KINDS)
        return self.call("delete", ",".join(every), "--selector", selector(name))

    def _keys(self, name: str) -> tuple[str, ...]:
        """Return the option of an encrypted job's admin key, a file of the coordinator's pod."""
        found = self.ask("get", "secret", f"{name}-keys", "--ignore-not-found", "--output", "name")
        return ("--keys", ADMIN_KEY) if found.strip() else ()


def _no_job(name: str) -> UnavailableError:
    return UnavailableError(
        f"{name}: expected a job of pslib k8s apply with a coordinator, found none; is it another "
        "--namespace?"
    )


def _no_cluster(said: str) -> UnavailableError:
    return UnavailableError(
        f"kubectl reaches no cluster: {said.strip()}; "
        "see kubectl cluster-info, and kubectl config get-contexts"
    )


def selector(name: str) -> str:
    """Return the selector of a job's objects."""
    return f"app.kubernetes.io/name=pslib,app.kubernetes.io/instance={name}"
