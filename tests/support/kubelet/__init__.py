"""Stand-in for the parts of Kubernetes that run a job: pods of plain manifests, on this machine, as root.

Kept: each pod has network, mount, pid, host-name and IPC namespaces of its own; an address that no pod has
had before; its names in DNS; a memory limit (control group), and the kernel's end of who passes it; a random
user id without an entry in passwd, no capabilities, a root that can't be written; ConfigMap, Secret with its
modes, emptyDir and claims of volumes with fsGroup. SIGTERM and a grace period before SIGKILL; restarts with
back-off; probes; StatefulSets with stable names and volumes; Deployments of one version; Indexed Jobs with
podFailurePolicy; nodes that are drained within a PodDisruptionBudget; those calls of kubectl that ``pslib k8s
scale`` and ``status`` make.

Not kept: an API server, overlays; images (folders of this machine stand in for them); node failure;
scheduling by resources, CPU limits; NetworkPolicy, seccomp; sizes of volumes; addresses of services (all are
headless); autoscalers, preStop; containers beside the first one, init containers; rolling updates. A field
that is not kept is refused by its name (`tests.support.kubelet.manifests`), so that no test relies on it
unseen.

Waits of Kubernetes between tries (back-off, probe periods) are `PACE` times as long as there; grace periods
and time-outs are as given.
"""

from tests.support.kubelet.image import Image
from tests.support.kubelet.kubectl import kubectl_of
from tests.support.kubelet.kubelet import Kubelet
from tests.support.kubelet.network import why_no_network
from tests.support.kubelet.pod import PACE, Pod

__all__ = ["PACE", "Image", "Kubelet", "Pod", "kubectl_of", "why_no_network"]
