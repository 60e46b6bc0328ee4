"""Manifests as the stand-in reads them: which fields it keeps, and which it takes without doing anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

__all__ = ["bytes_of", "read_manifests", "selects"]

Manifest = Mapping[str, Any]

_POD = """
    metadata.annotations.prometheus.io/*
    metadata.labels.* spec.terminationGracePeriodSeconds spec.securityContext.runAsNonRoot
    spec.securityContext.fsGroup spec.securityContext.fsGroupChangePolicy spec.restartPolicy spec.hostname
    spec.subdomain spec.automountServiceAccountToken spec.enableServiceLinks
    spec.securityContext.seccompProfile.type
    spec.containers[].name spec.containers[].image spec.containers[].command[] spec.containers[].args[]
    spec.containers[].env[].name spec.containers[].env[].value
    spec.containers[].env[].valueFrom.fieldRef.fieldPath
    spec.containers[].resources.requests.* spec.containers[].resources.limits.memory
    spec.containers[].ports[].name spec.containers[].ports[].containerPort
    spec.containers[].*Probe.httpGet.path spec.containers[].*Probe.httpGet.port
    spec.containers[].*Probe.periodSeconds spec.containers[].*Probe.timeoutSeconds
    spec.containers[].*Probe.failureThreshold spec.containers[].lifecycle.preStop.sleep.seconds
    spec.containers[].securityContext.allowPrivilegeEscalation
    spec.containers[].securityContext.readOnlyRootFilesystem
    spec.containers[].securityContext.capabilities.drop[]
    spec.containers[].volumeMounts[].name spec.containers[].volumeMounts[].mountPath
    spec.containers[].volumeMounts[].readOnly
    spec.volumes[].name spec.volumes[].configMap.name
    spec.volumes[].persistentVolumeClaim.claimName
    spec.volumes[].secret.secretName spec.volumes[].secret.defaultMode
    spec.volumes[].secret.items[].key spec.volumes[].secret.items[].path
"""
_OF_KIND = {
    "StatefulSet": """spec.serviceName spec.replicas spec.podManagementPolicy spec.selector.matchLabels.*
        spec.volumeClaimTemplates[].metadata.name spec.volumeClaimTemplates[].spec.*""",
    "Job": """spec.completionMode spec.parallelism spec.completions spec.backoffLimitPerIndex
        spec.podReplacementPolicy spec.podFailurePolicy.rules[].action
        spec.podFailurePolicy.rules[].onExitCodes.containerName
        spec.podFailurePolicy.rules[].onExitCodes.operator spec.podFailurePolicy.rules[].onExitCodes.values[]
        spec.podFailurePolicy.rules[].onPodConditions[].type
        spec.podFailurePolicy.rules[].onPodConditions[].status""",
    "Deployment": """spec.replicas spec.selector.matchLabels.* spec.strategy.type
        spec.strategy.rollingUpdate.*""",
    "Service": """spec.clusterIP spec.publishNotReadyAddresses spec.selector.* spec.ports[].name
        spec.ports[].port spec.ports[].targetPort""",
    "HorizontalPodAutoscaler": "spec.*",
    "ConfigMap": "data.*",
    "Secret": "type stringData.*",
    "PodDisruptionBudget": "spec.maxUnavailable spec.selector.matchLabels.*",
    "NetworkPolicy": "spec.*",
}
_EVERYWHERE = "apiVersion kind metadata.name metadata.labels.*"
_KEPT = {
    kind: [*_EVERYWHERE.split(), *fields.split(), *(f"spec.template.{field}" for field in _POD.split())]
    for kind, fields in _OF_KIND.items()
}
_ONLY: Mapping[str, Mapping[str, object]] = {
    "Job": {"completionMode": "Indexed", "podReplacementPolicy": "Failed"},
}
"""The only value of a field of ``spec`` that the stand-in knows."""

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def read_manifests(folder: Path) -> list[Manifest]:
    """Return the objects that a Kustomize base has, in its order.

    Raises
    ------
    ValueError
        When one has a field, or a value, that the stand-in does not know.
    """
    base = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if more := base.keys() - {"apiVersion", "kind", "resources"}:
        raise ValueError(f"kustomization.yaml: the stand-in knows resources only, got {sorted(more)}")
    found = [one for name in base["resources"] for one in yaml.safe_load_all((folder / name).read_text())]
    for manifest in found:
        _check(manifest)
    return found


def _check(manifest: Manifest) -> None:
    kind = manifest["kind"]
    if kind not in _KEPT:
        raise ValueError(f"the stand-in knows {', '.join(_KEPT)}, got {kind}")
    where = f"{kind} {manifest['metadata']['name']}"
    for field in _fields_of(manifest):
        if not any(fnmatchcase(field, pattern.replace("[", "[[]")) for pattern in _KEPT[kind]):
            raise ValueError(f"{where}: the stand-in does not keep {field}")
    for name, value in _ONLY.get(kind, {}).items():
        if (got := manifest["spec"].get(name)) != value:
            raise ValueError(f"{where}: the stand-in knows {name}: {value}, got {got}")
    spec = manifest.get("spec", {})
    if kind == "StatefulSet" and spec["replicas"] > 1 and spec.get("podManagementPolicy") != "Parallel":
        raise ValueError(f"{where}: the stand-in knows podManagementPolicy: Parallel only")
    if "template" in spec and len(spec["template"]["spec"]["containers"]) != 1:
        raise ValueError(f"{where}: the stand-in knows one container a pod")


def _fields_of(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of the values that have no parts; empty parts have none."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _fields_of(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for part in value:
            yield from _fields_of(part, f"{path}[]")
    else:
        yield path


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector."""
    return selector.items() <= labels.items()


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity as Kubernetes writes it."""
    found = re.fullmatch(r"(\d+)(\D*)", quantity)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"expected a quantity as 512Mi, got {quantity!r}")
    return int(found[1]) * _UNITS[found[2]]
