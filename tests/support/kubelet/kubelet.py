"""The stand-in's cluster: its nodes, its objects, and what a test does to them."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.support.kubelet.controllers import Deployment, IndexedJob, StatefulSet, may_evict
from tests.support.kubelet.image import Image
from tests.support.kubelet.manifests import Manifest, read_manifests, selects
from tests.support.kubelet.network import Dns, Network
from tests.support.kubelet.pod import Place, Pod
from tests.support.waiting import wait_until

__all__ = ["Kubelet"]

TURN_S = 0.05
_CONTROLLERS: Mapping[str, Callable[[Manifest], Deployment | StatefulSet | IndexedJob]] = {
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "Job": IndexedJob,
}
DOMAIN = "svc.cluster.local"
USERS = 1_000_000_000, 1_001_000_000
"""Range of user ids of a namespace, as OpenShift draws them."""


class Kubelet:
    """Cluster of one namespace on this machine; a context.

    Parameters
    ----------
    root : Path
        Empty folder for volumes and logs.
    images : mapping of str to Image
    nodes : sequence of str
    claims : mapping of str to Path
        Folders of claims that exist before.
    namespace : str

    Attributes
    ----------
    dns : Dns
    """

    def __init__(
        self,
        root: Path,
        images: Mapping[str, Image],
        *,
        nodes: Sequence[str] = ("node-a", "node-b"),
        claims: Mapping[str, Path] | None = None,
        namespace: str = "default",
    ) -> None:
        self._root, self._images, self._namespace = root, images, namespace
        self._open_nodes = dict.fromkeys(nodes, True)
        self._claims = dict(claims or {})
        self._user = random.randrange(*USERS)
        self._sets: dict[str, Deployment | StatefulSet | IndexedJob] = {}
        self._services: dict[str, Manifest] = {}
        self._budgets: dict[str, Manifest] = {}
        self._objects: dict[tuple[str, str], Mapping[str, str]] = {}
        self._pods: dict[str, Pod] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Kubelet:
        (self._root / "logs").mkdir(parents=True)
        self._network = self._stack.enter_context(Network())
        self.dns = Dns(self._network.address, self._addresses_of)
        self._stack.callback(self.dns.close)
        self._thread.start()
        self._stack.callback(self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if failure is not None:
            print(self.report())
        self._stack.close()

    def _end(self) -> None:
        self._over.set()
        self._thread.join()
        for pod in self._pods.values():
            pod.close()

    # --- what a test does -------------------------------------------------------------------------------

    def apply(self, folder: Path) -> None:
        """Create the objects of a Kustomize base, or change those that are there."""
        found = read_manifests(folder)
        with self._lock:
            for manifest in found:
                self._apply(manifest)

    def _apply(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind in _CONTROLLERS:
            made = _CONTROLLERS[kind](manifest)
            self._sets.setdefault(made.owner, made)
        elif kind in ("ConfigMap", "Secret"):
            self._objects[kind, name] = manifest.get("data") or manifest.get("stringData") or {}
        elif kind == "Service":
            self._services[name] = manifest
        elif kind == "PodDisruptionBudget":
            self._budgets[name] = manifest

    def pods(self, owner: str = "") -> list[Pod]:
        """Return the pods, or those of ``KIND/NAME``, in the order of their creation."""
        with self._lock:
            return [pod for pod in self._pods.values() if owner in ("", pod.owner)]

    def pod(self, name: str) -> Pod:
        """Return a pod; ``JOB-INDEX`` is the newest one of that index."""
        found = [pod for pod in self.pods() if name in (pod.name, pod.host_name)]
        if not found:
            raise LookupError(f"no pod {name}; there are {', '.join(pod.name for pod in self.pods())}")
        return found[-1]

    def job(self, name: str) -> IndexedJob:
        """Return a Job."""
        found = self._sets[f"Job/{name}"]
        assert isinstance(found, IndexedJob)
        return found

    def wait(self, condition: Callable[[], object], limit_s: float, what: str) -> None:
        """Wait for a condition; fail with the state of all pods."""

        def asked() -> bool:
            if self._failure is not None:
                raise AssertionError("the kubelet's thread has ended") from self._failure
            with self._lock:
                return bool(condition())

        wait_until(asked, limit_s, lambda: f"{what}\n{self.report()}", pause_s=TURN_S)

    def is_ready(self, owner: str) -> bool:
        """Return whether all pods that an owner wants are ready."""
        with self._lock:
            return sum(pod.ready for pod in self.pods(owner)) == self._wanted()[owner]

    def kill(self, name: str, number: int = 9) -> None:
        """Send a signal to the first process of a pod; the pod stays."""
        with self._lock:
            container = self.pod(name).container
            if container is not None:
                container.signal(number)

    def delete_pod(self, name: str, grace_s: float | None = None) -> None:
        """Delete a pod: SIGTERM, then SIGKILL. Its successor has another address."""
        with self._lock:
            self.pod(name).leave(time.monotonic(), grace_s)

    def replace(self, name: str, grace_s: float | None = None) -> Pod:
        """Delete a pod, and wait for its successor, which has another address; return that."""
        before = self.pod(name)
        host = before.host_name
        self.delete_pod(name, grace_s)
        self.wait(
            lambda: self._has(host) and self.pod(host) is not before, before.grace_s, f"a new pod {host}"
        )
        after = self.pod(host)
        assert after.address != before.address
        return after

    def _has(self, host: str) -> bool:
        return any(pod.host_name == host and not pod.ended for pod in self._pods.values())

    def cordon(self, node: str, closed: bool = True) -> None:
        """Let no pods start on a node, or let them again."""
        with self._lock:
            self._open_nodes[node] = not closed

    def drain(self, node: str, limit_s: float) -> None:
        """Evict all pods of a node as the budgets allow, and wait until they have gone."""
        self.cordon(node)
        self.wait(lambda: not self.evict_from(node), limit_s, f"{node} to be drained")

    def evict_from(self, node: str) -> list[Pod]:
        """Evict what the budgets allow now; return the pods that are still there."""
        with self._lock:
            here = [pod for pod in self.pods() if pod.place.node == node and not pod.ended]
            for pod in here:
                if not pod.leaving and may_evict(pod, self.pods(), self._budgets.values(), self._wanted()):
                    pod.disrupted = True
                    pod.leave(time.monotonic())
            return here

    def scale(self, owner: str, replicas: int) -> None:
        """Change the number of pods of ``KIND/NAME``, of a Job with its completions."""
        with self._lock:
            self._sets[owner].scale(replicas)

    def replicas(self, owner: str) -> int:
        """Return the number of pods that ``StatefulSet/NAME`` is to have."""
        found = self._sets[owner]
        assert isinstance(found, StatefulSet)
        return found.replicas

    def holds(self, kind: str, name: str) -> bool:
        """Return True if there is a ConfigMap or Secret of this name."""
        return (kind, name) in self._objects

    def exec(
        self, name: str, argv: Sequence[str], timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod's container."""
        container = self.pod(name).container
        if container is None:
            raise LookupError(f"{name} runs no container")
        return container.run(argv, timeout_s)

    def logs(self, name: str) -> str:
        """Return what all pods of this name, or of this index of a Job, have printed."""
        files = sorted((self._root / "logs").glob(f"{name}*.log"), key=lambda file: file.stat().st_mtime)
        return "".join(file.read_text(errors="replace") for file in files)

    def report(self) -> str:
        """Describe all pods, and the last lines of each."""
        lines = [
            f"{job.owner}: {job.condition} {job.reason}"
            for job in self._sets.values()
            if isinstance(job, IndexedJob)
        ]
        for pod in self.pods():
            state = f"{pod.phase}{' ready' if pod.ready else ''}{' leaving' if pod.leaving else ''}"
            lines.append(f"--- {pod.name} {pod.address} {pod.place.node}: {state}, exits {pod.exits}")
            lines += self.logs(pod.name).splitlines()[-15:]
        return "\n".join(lines)

    # --- what controllers need --------------------------------------------------------------------------

    def create(
        self, owner: str, manifest: Manifest, name: str, host_name: str, index: int, more: Mapping[str, str]
    ) -> None:
        """Create a pod on the open node that has the fewest."""
        nodes = [node for node, is_open in self._open_nodes.items() if is_open]
        if not nodes:
            return
        busy = [pod.place.node for pod in self._pods.values() if not pod.ended]
        template = manifest["spec"]["template"]
        interface = self._network.join()
        place = Place(
            min(nodes, key=busy.count),
            interface,
            self._network.address,
            self._namespace,
            self._images[template["spec"]["containers"][0]["image"]],
            self._objects,
            self._claims_of(manifest, name),
            self._root / "pods" / interface.namespace,
            self._root / "logs" / f"{name}.log",
            self._user,
        )
        subdomain = manifest["spec"].get("serviceName", template["spec"].get("subdomain", ""))
        self._pods[name] = Pod(name, host_name, subdomain, owner, index, template, place, more)

    def _claims_of(self, manifest: Manifest, pod: str) -> dict[str, Path]:
        """Return the folders of a pod's claims: those of templates are made, others must be there."""
        templates = [one["metadata"]["name"] for one in manifest["spec"].get("volumeClaimTemplates", ())]
        folders = {name: self._root / "claims" / f"{name}-{pod}" for name in templates}
        for volume in manifest["spec"]["template"]["spec"].get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                folders[volume["name"]] = self._claims[volume["persistentVolumeClaim"]["claimName"]]
        return folders

    def leave(self, pod: Pod) -> None:
        """Delete a pod."""
        pod.leave(time.monotonic())

    def forget(self, pod: Pod) -> None:
        """Remove a pod that has ended."""
        del self._pods[pod.name]

    def _wanted(self) -> dict[str, int]:
        return {
            owner: one.completions if isinstance(one, IndexedJob) else one.replicas
            for owner, one in self._sets.items()
        }

    # --- its thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.wait(TURN_S):
                with self._lock:
                    self._turn(time.monotonic())
        except BaseException as error:
            self._failure = error
            raise

    def _turn(self, now_s: float) -> None:
        for pod in self._pods.values():
            pod.turn(now_s)
            if pod.ended:
                self._network.leave(pod.place.interface)
        for owner, one in self._sets.items():
            one.turn([pod for pod in self._pods.values() if pod.owner == owner], now_s, self)

    def _addresses_of(self, name: str) -> list[str]:
        """Return the addresses of a name in DNS: of a headless service, or of a pod below it."""
        end = f".{self._namespace}.{DOMAIN}"
        if not name.endswith(end):
            return []
        *first, service = name.removesuffix(end).split(".")
        with self._lock:
            found = self._services.get(service)
            if found is None:
                return []
            return [
                pod.address
                for pod in self._behind(found)
                if not first or (first == [pod.host_name] and pod.subdomain == service)
            ]

    def _behind(self, service: Manifest) -> Iterable[Pod]:
        spec = service["spec"]
        for pod in self._pods.values():
            seen = pod.ready or (spec.get("publishNotReadyAddresses", False) and not pod.ended)
            if seen and selects(spec["selector"], pod.labels):
                yield pod
