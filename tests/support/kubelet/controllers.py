"""Controllers, which create and delete pods: StatefulSet, Deployment, Indexed Job; and allowed evictions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase, digits
from typing import Any, Protocol

from tests.support.kubelet.manifests import Manifest, selects
from tests.support.kubelet.pod import Pod, backoff_s

__all__ = ["Deployment", "IndexedJob", "StatefulSet", "may_evict"]


class Cluster(Protocol):
    """Interface of the cluster that a controller uses."""

    def create(
        self, owner: str, manifest: Manifest, name: str, host_name: str, index: int, more: Mapping[str, str]
    ) -> None:
        """Create a pod, unless no node takes one."""

    def leave(self, pod: Pod) -> None:
        """Delete a pod."""

    def forget(self, pod: Pod) -> None:
        """Remove a pod that has ended."""


class PodSet:
    """Base of controllers that keep a number of pods: how many, and of what.

    Parameters
    ----------
    manifest : mapping
    """

    def __init__(self, manifest: Manifest) -> None:
        self.name: str = manifest["metadata"]["name"]
        self.owner = f"{manifest['kind']}/{self.name}"
        self.manifest = manifest
        self.replicas: int = manifest["spec"].get("replicas", 1)

    def scale(self, replicas: int) -> None:
        """Change the number of pods."""
        self.replicas = replicas


class StatefulSet(PodSet):
    """Pods with stable names and volumes; one that has ended has a successor of its name."""

    def turn(self, pods: Sequence[Pod], now_s: float, cluster: Cluster) -> None:
        """Create pods that are missing, delete those that are too many."""
        for pod in pods:
            if pod.ended:
                cluster.forget(pod)
            elif pod.index >= self.replicas and not pod.leaving:
                cluster.leave(pod)
        for index in sorted(set(range(self.replicas)) - {pod.index for pod in pods}):
            name = f"{self.name}-{index}"
            cluster.create(self.owner, self.manifest, name, name, index, {})


class Deployment(PodSet):
    """Pods without names of their own; one that has ended, or was asked to leave, has a successor."""

    def turn(self, pods: Sequence[Pod], now_s: float, cluster: Cluster) -> None:
        """Create pods that are missing, delete those that are too many."""
        for pod in pods:
            if pod.ended:
                cluster.forget(pod)
        staying = [pod for pod in pods if not pod.ended and not pod.leaving]
        for pod in staying[self.replicas :]:
            cluster.leave(pod)
        for _ in range(self.replicas - len(staying)):
            name = f"{self.name}-{''.join(random.choices(ascii_lowercase + digits, k=5))}"
            cluster.create(self.owner, self.manifest, name, name, 0, {})


class IndexedJob:
    """Pods of a Job with completion indexes.

    Parameters
    ----------
    manifest : mapping

    Attributes
    ----------
    condition : str
        "Complete" or "Failed", empty while it runs.
    reason : str
        Why it has failed.
    succeeded, failed : set of int
        Indexes.
    failures : Counter
        Failures of each index that count.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.name: str = manifest["metadata"]["name"]
        self.owner = f"Job/{self.name}"
        self.manifest = manifest
        spec = manifest["spec"]
        self.completions: int = spec["completions"]
        self.parallelism: int = spec["parallelism"]
        self._failures_max: int = spec["backoffLimitPerIndex"]
        self._rules: Sequence[Mapping[str, Any]] = spec.get("podFailurePolicy", {}).get("rules", ())
        self.condition = self.reason = ""
        self.succeeded: set[int] = set()
        self.failed: set[int] = set()
        self.failures: Counter[int] = Counter()
        self._counted: set[str] = set()
        self._due_s: dict[int, float] = {}

    def scale(self, replicas: int) -> None:
        """Change parallelism and completions together, as Kubernetes allows for an Indexed Job."""
        self.completions = self.parallelism = replicas

    def turn(self, pods: Sequence[Pod], now_s: float, cluster: Cluster) -> None:
        """Count pods that have ended; create and delete others; note the end of the Job."""
        for pod in pods:
            if pod.ended and pod.name not in self._counted:
                self._counted.add(pod.name)
                self._count(pod, now_s)
            if pod.ended and pod.leaving:
                cluster.forget(pod)
        active = [pod for pod in pods if not pod.ended]
        for pod in active:
            if (self.condition or pod.index >= self.completions) and not pod.leaving:
                cluster.leave(pod)
        if not self.condition:
            self._conclude()
        if not self.condition:
            self._create(active, now_s, cluster)

    def _create(self, active: Iterable[Pod], now_s: float, cluster: Cluster) -> None:
        busy = {pod.index for pod in active}
        waiting = set(range(self.completions)) - busy - self.succeeded - self.failed
        due = [index for index in sorted(waiting) if now_s >= self._due_s.get(index, 0.0)]
        for index in due[: max(0, self.parallelism - len(busy))]:
            host = f"{self.name}-{index}"
            name = f"{host}-{''.join(random.choices(ascii_lowercase + digits, k=5))}"
            more = {"JOB_COMPLETION_INDEX": str(index)}
            cluster.create(self.owner, self.manifest, name, host, index, more)

    def _count(self, pod: Pod, now_s: float) -> None:
        index = pod.index
        if pod.phase == "Succeeded":
            self.succeeded.add(index)
            return
        if index >= self.completions:  # it was scaled away
            return
        action = self._action(pod)
        if action == "FailJob":
            self.condition, self.reason = "Failed", f"PodFailurePolicy: {pod.name} ended with {pod.exits}"
        elif action == "FailIndex":
            self.failed.add(index)
        elif action == "Count":
            self.failures[index] += 1
            self._due_s[index] = now_s + backoff_s(self.failures[index])
            if self.failures[index] > self._failures_max:
                self.failed.add(index)

    def _action(self, pod: Pod) -> str:
        """Return what the first rule that matches says; a failure counts where none does."""
        for rule in self._rules:
            codes = rule.get("onExitCodes")
            if codes is not None:
                code = pod.exits[-1] if pod.exits else 0
                inside = code in codes["values"]
                if code and inside == (codes["operator"] == "In"):
                    return rule["action"]
            elif pod.disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]:
                return rule["action"]
        return "Count"

    def _conclude(self) -> None:
        indexes = set(range(self.completions))
        if indexes <= self.succeeded:
            self.condition = "Complete"
        elif indexes <= self.succeeded | self.failed:
            self.condition, self.reason = "Failed", f"FailedIndexes: {sorted(indexes & self.failed)}"


def may_evict(
    pod: Pod, pods: Iterable[Pod], budgets: Iterable[Manifest], expected: Mapping[str, int]
) -> bool:
    """Return whether the budgets allow to evict a pod now.

    Parameters
    ----------
    pod : Pod
    pods : iterable of Pod
        All of the cluster.
    budgets : iterable
        Manifests of PodDisruptionBudgets.
    expected : mapping of str to int
        Number of pods that each owner wants.
    """
    every = list(pods)
    for budget in budgets:
        selector = budget["spec"]["selector"]["matchLabels"]
        if not selects(selector, pod.labels):
            continue
        covered = [one for one in every if selects(selector, one.labels)]
        wanted = sum(expected[owner] for owner in {one.owner for one in covered})
        healthy = sum(one.ready for one in covered)
        needed = wanted - budget["spec"]["maxUnavailable"]
        if healthy - pod.ready < needed:  # one that is not ready makes no difference
            return False
    return True
