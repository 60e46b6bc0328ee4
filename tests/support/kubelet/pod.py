"""One pod: its volumes, the runs of its container, its end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.kubelet.container import Container, ContainerSpec, Mount
from tests.support.kubelet.image import Image
from tests.support.kubelet.manifests import bytes_of
from tests.support.kubelet.network import Interface
from tests.support.kubelet.probe import Prober

__all__ = ["PACE", "Place", "Pod", "backoff_s"]

PACE = 0.1
"""Length of Kubernetes' own waits here, as a part of theirs: back-off, periods of probes."""
BACKOFF_S, BACKOFF_MAX_S = 10.0 * PACE, 300.0 * PACE
GOOD_RUN_S = 600.0 * PACE
"""A container that has run so long is started again without a longer wait."""
GRACE_S = 30
FOLDER_MODE = 0o2770


def backoff_s(failures: int) -> float:
    """Return the wait before another try after a number of failures in a row."""
    return 0.0 if not failures else float(min(BACKOFF_S * 2 ** (failures - 1), BACKOFF_MAX_S))


@dataclass(frozen=True, slots=True)
class Place:
    """Resources that a cluster gives to a pod.

    Attributes
    ----------
    node : str
    interface : Interface
    nameserver, namespace : str
    image : Image
    objects : mapping
        Texts of config maps and secrets, by kind and name.
    claims : mapping of str to Path
        Folders of the volumes that the pod claims, by the volume's name.
    folder : Path
        The pod's own, which is removed with it.
    log : Path
    user : int
    """

    node: str
    interface: Interface
    nameserver: str
    namespace: str
    image: Image
    objects: Mapping[tuple[str, str], Mapping[str, str]]
    claims: Mapping[str, Path]
    folder: Path
    log: Path
    user: int


@dataclass(slots=True)
class Pod:
    """Pod of a StatefulSet, a Deployment or a Job.

    Attributes
    ----------
    name, host_name, subdomain : str
    owner : str
        Kind and name of what keeps it.
    index : int
        Its number in its owner; 0 in a Deployment, whose pods have none.
    template : mapping
        Of its owner's manifest.
    place : Place
    more : mapping of str to str
        Environment that its owner gives.
    phase : str
        "Pending", "Running", "Succeeded" or "Failed".
    disrupted : bool
        True once it was evicted.
    restarts : int
        Times that its container was started again.
    exits : list of int
        Exit codes of its containers, in order.
    out_of_memory : bool
        True if the kernel ended one that had passed its limit.
    """

    name: str
    host_name: str
    subdomain: str
    owner: str
    index: int
    template: Mapping[str, Any]
    place: Place
    more: Mapping[str, str]
    phase: str = "Pending"
    disrupted: bool = False
    restarts: int = 0
    exits: list[int] = field(default_factory=list)
    out_of_memory: bool = False
    container: Container | None = None
    prober: Prober | None = None
    kill_at_s: float | None = None
    _due_s: float = 0.0
    _started_s: float = 0.0
    _failures: int = 0

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the pod."""
        return self.template["metadata"]["labels"]

    @property
    def address(self) -> str:
        """Address of the pod."""
        return self.place.interface.address

    @property
    def ready(self) -> bool:
        """Return whether its probes say that it serves; never once it was asked to leave."""
        if self.leaving or self.container is None or self.prober is None:
            return False
        return self.prober.ready and self.container.has_begun()

    @property
    def ended(self) -> bool:
        """Return whether it will run no more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        """Return whether it was deleted or evicted."""
        return self.kill_at_s is not None

    @property
    def grace_s(self) -> float:
        """Time between SIGTERM and SIGKILL."""
        return float(self.template["spec"].get("terminationGracePeriodSeconds", GRACE_S))

    def leave(self, now_s: float, grace_s: float | None = None) -> None:
        """Ask it to leave, with its own grace period or another one, which counts if it is shorter."""
        kill_at_s = now_s + (self.grace_s if grace_s is None else grace_s)
        self.kill_at_s = kill_at_s if self.kill_at_s is None else min(self.kill_at_s, kill_at_s)
        if self.container is not None:
            self.container.ask_to_leave(self.kill_at_s)

    def turn(self, now_s: float) -> None:
        """Start its container when it is due; end one whose time is over; note ends."""
        if self.ended:
            return
        if self.container is None:
            if self.leaving:
                self._end(0 if self.exits == [0] else 1)
            elif now_s >= self._due_s:
                self._start(now_s)
        elif not self.container.poll():
            self._note_end(now_s)
        elif self.container.kill_at_s is not None:
            self.container.kill_if_due(now_s)
        elif self.prober is not None and self.prober.failed:
            self.container.ask_to_leave(now_s + self.grace_s)

    def _note_end(self, now_s: float) -> None:
        assert self.container is not None
        assert self.prober is not None
        code = self.container.exit_code
        assert code is not None
        self.exits.append(code)
        self.out_of_memory |= self.container.out_of_memory
        self.container = None
        self.prober.stop()
        if self.leaving or self.template["spec"].get("restartPolicy", "Always") == "Never":
            self._end(code)
            return
        self._failures = 1 if now_s - self._started_s > GOOD_RUN_S else self._failures + 1
        self._due_s = now_s + backoff_s(self._failures)
        self.restarts += 1

    def _end(self, code: int) -> None:
        self.phase = "Failed" if code else "Succeeded"
        shutil.rmtree(self.place.folder, ignore_errors=True)

    def close(self) -> None:
        """Kill its container."""
        if self.container is not None:
            self.container.end()
        if self.prober is not None:
            self.prober.stop()

    # --- its container ----------------------------------------------------------------------------------

    def _start(self, now_s: float) -> None:
        description = self.template["spec"]["containers"][0]
        self._started_s = now_s
        self.phase = "Running"
        self.container = Container(self._spec(description), self.place.log)
        self.prober = Prober(description, self.address, PACE)

    def _spec(self, description: Mapping[str, Any]) -> ContainerSpec:
        place, spec = self.place, self.template["spec"]
        root = place.folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        group = spec.get("securityContext", {}).get("fsGroup", 0)
        volumes = {one["name"]: one for one in spec.get("volumes", ())}
        memory = description.get("resources", {}).get("limits", {}).get("memory")
        search = f"{place.namespace}.svc.cluster.local svc.cluster.local cluster.local"
        return ContainerSpec(
            [*description["command"], *description.get("args", ())],
            {**place.image.environment, **self._environment(description), **self.more},
            place.image,
            [
                Mount(
                    self._volume(one["name"], volumes.get(one["name"]), group),
                    one["mountPath"],
                    one.get("readOnly", False),
                )
                for one in description.get("volumeMounts", ())
            ],
            self.host_name,
            place.interface.namespace,
            {
                "resolv.conf": f"nameserver {place.nameserver}\nsearch {search}\noptions ndots:5\n",
                "hosts": f"127.0.0.1\tlocalhost\n{self.address}\t{self.host_name}\n",
                "hostname": f"{self.host_name}\n",
                "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n",
            },
            place.user,
            group,
            None if memory is None else bytes_of(memory),
            description.get("securityContext", {}).get("readOnlyRootFilesystem", False),
            root,
        )

    def _environment(self, description: Mapping[str, Any]) -> dict[str, str]:
        fields = {"status.podIP": self.address, "metadata.name": self.name, "spec.nodeName": self.place.node}
        return {
            one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in description.get("env", ())
        }

    def _volume(self, name: str, volume: Mapping[str, Any] | None, group: int) -> Path:
        """Return the folder of a volume, made when it is not there; None: of a template of claims."""
        if volume is None or "persistentVolumeClaim" in volume:
            folder = self.place.claims[name]
            own_by(folder, group)
            return folder
        folder = self.place.folder / "volumes" / name
        if folder.exists():  # of an earlier container of this pod
            return folder
        folder.mkdir(parents=True)
        if "emptyDir" in volume:
            folder.chmod(0o777)
        elif "configMap" in volume:
            self._write(folder, self.place.objects["ConfigMap", volume["configMap"]["name"]], 0o644, group)
        else:
            secret = volume["secret"]
            texts = self.place.objects["Secret", secret["secretName"]]
            if "items" in secret:
                texts = {one["path"]: texts[one["key"]] for one in secret["items"]}
            self._write(folder, texts, secret.get("defaultMode", 0o644), group)
        return folder

    def _write(self, folder: Path, texts: Mapping[str, str], mode: int, group: int) -> None:
        for name, text in texts.items():
            file = folder / name
            file.touch(0o600)
            file.write_text(text)
            shutil.chown(file, 0, group)
            file.chmod(mode)


def own_by(folder: Path, group: int) -> None:
    """Give a volume to a group, as fsGroup with OnRootMismatch does."""
    folder.mkdir(parents=True, exist_ok=True)
    found = folder.stat()
    if group and (found.st_gid, found.st_mode & FOLDER_MODE) != (group, FOLDER_MODE):
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, group=group)
            path.chmod(path.stat().st_mode | (FOLDER_MODE if path.is_dir() else 0o660))
