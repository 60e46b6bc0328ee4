"""The stand-in for Kubernetes, with small programs in its pods: what the tests of manifests rely on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubelet import Image, Kubelet, why_no_network
from tests.support.kubelet.container import memory_group

pytestmark = [pytest.mark.cluster, pytest.mark.root]

ROOT = Path(__file__).parents[4]
SLEEPS = "import signal; signal.pause()"
LEAVES = (
    "import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); print('up', flush=True); signal.pause()"
)
LABELS = {"app": "small"}
GROUP = 10001

Start = Callable[..., Kubelet]


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if why := why_no_network():
        pytest.skip(why)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a cluster with the given manifests; all that they name runs in it until the end of the test."""
    running: list[Kubelet] = []

    def started(*manifests: Mapping[str, Any], **options: Any) -> Kubelet:
        kubelet = Kubelet(tmp_path / "kubelet", {"small": Image.of_this_interpreter(ROOT)}, **options)
        running.append(kubelet.__enter__())
        kubelet.apply(written(tmp_path / "base", *manifests))
        return kubelet

    yield started
    for kubelet in running:
        kubelet.__exit__(None, None, None)


def written(folder: Path, *manifests: Mapping[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "all.yaml").write_text(yaml.safe_dump_all(manifests))
    (folder / "kustomization.yaml").write_text("resources: [all.yaml]\n")
    return folder


def pod_of(program: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    own = {"name": "main", "image": "small", "command": [sys.executable, "-c", program], **container}
    return {"metadata": {"labels": LABELS}, "spec": {"containers": [own], **spec}}


def stateful(
    program: str,
    replicas: int = 1,
    claims: bool = False,
    spec: Mapping[str, Any] | None = None,
    **container: Any,
) -> dict[str, Any]:
    templates = {"volumeClaimTemplates": [{"metadata": {"name": "state"}, "spec": {}}]} if claims else {}
    if claims:
        container["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "many"},
        "spec": {
            "serviceName": "names",
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": LABELS},
            "template": pod_of(program, spec or {}, container),
            **templates,
        },
    }


def job(
    program: str,
    completions: int = 2,
    deaths: int = 2,
    rules: Any = (),
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "work"},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": completions,
            "completions": completions,
            "backoffLimitPerIndex": deaths,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": list(rules)},
            "template": pod_of(program, {"restartPolicy": "Never", **(spec or {})}, {}),
        },
    }


def deployment(program: str, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "any"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": pod_of(program, {}, {}),
        },
    }


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "names"},
    "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": LABELS},
}


def says(kubelet: Kubelet, pod: str, program: str) -> str:
    """Return the output of a Python program in a pod's container, or its error."""
    done = kubelet.exec(pod, [sys.executable, "-c", program])
    return (done.stdout + done.stderr).strip()


def run_all(kubelet: Kubelet, owner: str = "StatefulSet/many") -> None:
    kubelet.wait(lambda: kubelet.is_ready(owner), 20, "all pods to be ready")


# --- a pod -----------------------------------------------------------------------------------------------


def test_a_pod_has_its_own_user_host_name_processes_and_no_way_to_more(start: Start) -> None:
    container = {
        "securityContext": {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "env": [
            {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    volumes = {"volumes": [{"name": "tmp", "emptyDir": {}}], "securityContext": {"fsGroup": GROUP}}
    kubelet = start(stateful(SLEEPS, spec=volumes, **container))
    run_all(kubelet)
    user, group, groups = says(
        kubelet, "many-0", "import os; print(os.getuid(), os.getgid(), os.getgroups())"
    ).split(maxsplit=2)
    assert int(user) >= 1_000_000_000
    assert (group, groups) == ("0", f"[{GROUP}]")
    assert says(kubelet, "many-0", "import pwd, os; pwd.getpwuid(os.getuid())").endswith(
        f"uid not found: {user}'"
    )
    assert says(kubelet, "many-0", "import socket; print(socket.gethostname())") == "many-0"
    assert says(kubelet, "many-0", "import os; print(os.environ['WHO'], os.environ['WHERE'])") == (
        f"many-0 {kubelet.pod('many-0').address}"
    )
    pids = says(
        kubelet,
        "many-0",
        "import os; print(*sorted(int(one) for one in os.listdir('/proc') if one.isdigit()))",
    )
    assert pids.split()[0] == "1"
    assert len(pids.split()) == 2  # its program and the one that asks
    status = says(kubelet, "many-0", "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    for path in ("/x", "/etc/x", "/usr/x", sys.prefix + "/x"):
        assert "Read-only file system" in says(kubelet, "many-0", f"open({path!r}, 'w')")
    assert says(kubelet, "many-0", "open('/tmp/x', 'w').write('1'); open('/dev/shm/x', 'w')") == ""
    assert "HOME" not in says(kubelet, "many-0", "import os; print(*os.environ)").split()


def test_config_maps_and_secrets_are_files_with_their_modes(start: Start) -> None:
    mounts = [
        {"name": "job", "mountPath": "/etc/job", "readOnly": True},
        {"name": "keys", "mountPath": "/etc/keys"},
    ]
    secret = {"secretName": "keys", "defaultMode": 0o440, "items": [{"key": "a.key", "path": "own.key"}]}
    volumes = [{"name": "job", "configMap": {"name": "job"}}, {"name": "keys", "secret": secret}]
    kubelet = start(
        {"kind": "ConfigMap", "metadata": {"name": "job"}, "data": {"job.yaml": "out: here\n"}},
        {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"a.key": "secret", "b.key": "other"}},
        stateful(
            SLEEPS, spec={"volumes": volumes, "securityContext": {"fsGroup": GROUP}}, volumeMounts=mounts
        ),
    )
    run_all(kubelet)
    assert says(kubelet, "many-0", "print(open('/etc/job/job.yaml').read())") == "out: here"
    assert says(kubelet, "many-0", "print(open('/etc/keys/own.key').read())") == "secret"
    found = "import os; print(os.listdir('/etc/keys'), oct(os.stat('/etc/keys/own.key').st_mode))"
    assert says(kubelet, "many-0", found) == "['own.key'] 0o100440"


def test_a_deployment_has_its_number_of_pods_and_a_successor_another_name(start: Start) -> None:
    kubelet = start(deployment(SLEEPS, replicas=2))
    run_all(kubelet, "Deployment/any")
    first, second = kubelet.pods("Deployment/any")
    kubelet.delete_pod(first.name, grace_s=0)

    def names() -> set[str]:
        return {pod.name for pod in kubelet.pods("Deployment/any")}

    kubelet.wait(lambda: first.name not in names() and len(names()) == 2, 20, "a successor")
    assert second.name in names()
    kubelet.scale("Deployment/any", 1)
    kubelet.wait(lambda: names() == {second.name}, 20, "the newer one to leave")


def test_pods_find_each_other_by_name_and_a_successor_has_another_address(start: Start) -> None:
    kubelet = start(SERVICE, stateful(SLEEPS, replicas=2))
    run_all(kubelet)
    look = "import socket; print(socket.gethostbyname('many-1.names'))"
    first = kubelet.pod("many-1").address
    assert says(kubelet, "many-0", look) == first
    full = look.replace("many-1.names", "many-1.names.default.svc.cluster.local")
    assert says(kubelet, "many-0", full) == first
    everyone = "import socket; print(*sorted(one[4][0] for one in socket.getaddrinfo('names', 1, type=1)))"
    assert says(kubelet, "many-0", everyone).split() == sorted(pod.address for pod in kubelet.pods())
    assert "Name or service not known" in says(kubelet, "many-0", look.replace("many-1", "many-2"))
    kubelet.dns.stale = True
    after = kubelet.replace("many-1", grace_s=0)
    assert after.address != first
    assert says(kubelet, "many-0", look) == first
    kubelet.dns.stale = False
    assert says(kubelet, "many-0", look) == after.address


def test_pods_reach_each_other_and_a_probe_reaches_them(start: Start) -> None:
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    program = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080)"
    ports = [{"name": "http", "containerPort": 8080}]
    kubelet = start(SERVICE, stateful(program, replicas=2, ports=ports, readinessProbe=probe))
    run_all(kubelet)
    get = "import urllib.request as r; print(r.urlopen('http://many-1.names:8080/etc/hostname').read().decode())"
    assert says(kubelet, "many-0", get) == "many-1"


def test_a_container_that_fails_its_liveness_probe_is_started_again(start: Start) -> None:
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2}
    kubelet = start(stateful(LEAVES, spec={"terminationGracePeriodSeconds": 1}, livenessProbe=probe))
    kubelet.wait(lambda: kubelet.pods() and kubelet.pod("many-0").restarts, 20, "a restart")
    assert len(kubelet.pod("many-0").exits) == 1


def test_a_container_that_does_not_start_in_its_time_is_started_again(start: Start) -> None:
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "failureThreshold": 3}
    kubelet = start(stateful(LEAVES, spec={"terminationGracePeriodSeconds": 1}, startupProbe=probe))
    kubelet.wait(lambda: kubelet.pods() and kubelet.pod("many-0").restarts, 20, "a restart")
    assert not kubelet.pod("many-0").ready


def test_a_pod_that_passes_its_memory_limit_is_ended_alone(start: Start) -> None:
    if (group := memory_group("kubelet-trial", 64 << 20)) is None:
        pytest.skip("expected a control group of memory that can be written")
    group.rmdir()
    program = (
        "import signal, socket\nif socket.gethostname() == 'many-1': bytearray(200 << 20)\nsignal.pause()"
    )
    kubelet = start(stateful(program, replicas=2, resources={"limits": {"memory": "64Mi"}}))
    kubelet.wait(lambda: kubelet.pods() and kubelet.pod("many-1").exits, 20, "an end")
    assert kubelet.pod("many-1").exits[0] == 137
    assert kubelet.pod("many-1").out_of_memory
    assert kubelet.pod("many-0").exits == []


def test_sigterm_comes_first_and_sigkill_after_the_grace_period(start: Start) -> None:
    deaf = "import signal; signal.signal(15, lambda *_: print('asked', flush=True)); print('up', flush=True)"
    kubelet = start(job(f"{deaf}\nwhile True: signal.pause()", 1, spec={"terminationGracePeriodSeconds": 1}))
    kubelet.wait(lambda: "up" in kubelet.logs("work-0"), 20, "the program")
    pod = kubelet.pod("work-0")
    kubelet.delete_pod("work-0")
    kubelet.wait(lambda: pod.ended, 10, "its end")
    assert "asked" in kubelet.logs(pod.name)
    assert pod.exits == [137]


# --- StatefulSet -----------------------------------------------------------------------------------------


def test_a_stateful_set_keeps_names_and_volumes_and_starts_its_pods_again(start: Start) -> None:
    program = f"open('/state/starts', 'a').write('x'); print('up', flush=True); {SLEEPS}"
    kubelet = start(stateful(program, replicas=2, claims=True, spec={"securityContext": {"fsGroup": GROUP}}))
    run_all(kubelet)
    starts = "print(open('/state/starts').read())"
    first = kubelet.pod("many-0").address
    kubelet.wait(lambda: "up" in kubelet.logs("many-0"), 10, "its first start")
    kubelet.kill("many-0")
    kubelet.wait(
        lambda: kubelet.pod("many-0").restarts == 1 and kubelet.is_ready("StatefulSet/many"), 10, "a restart"
    )
    assert kubelet.pod("many-0").address == first
    kubelet.wait(lambda: kubelet.logs("many-0").count("up") == 2, 10, "its second start")
    kubelet.replace("many-0", grace_s=0)
    run_all(kubelet)
    kubelet.wait(lambda: says(kubelet, "many-0", starts) == "xxx", 10, "its third start")
    assert says(kubelet, "many-1", starts) == "x"


def test_back_off_grows_with_each_death(start: Start) -> None:
    kubelet = start(stateful("import time; print(time.monotonic(), flush=True)"))
    kubelet.wait(lambda: kubelet.pods() and kubelet.pod("many-0").restarts == 3, 20, "three restarts")
    times = [float(line) for line in kubelet.logs("many-0").split()]
    assert times[1] - times[0] >= 1.0
    assert times[2] - times[1] >= 2.0


def test_a_scaled_stateful_set_gives_up_its_last_pods_and_keeps_their_volumes(start: Start) -> None:
    program = f"open('/state/starts', 'a').write('x'); {SLEEPS}"
    own = {"terminationGracePeriodSeconds": 0, "securityContext": {"fsGroup": GROUP}}
    kubelet = start(stateful(program, claims=True, spec=own))

    def scaled_to(replicas: int) -> None:
        kubelet.scale("StatefulSet/many", replicas)
        kubelet.wait(
            lambda: len(kubelet.pods()) == replicas and kubelet.is_ready("StatefulSet/many"), 20, "pods"
        )

    def has_started(times: int) -> None:
        """A pod without a probe is ready before its program has run a line."""
        starts = "print(open('/state/starts').read())"
        kubelet.wait(lambda: says(kubelet, "many-2", starts) == "x" * times, 10, f"start {times}")

    scaled_to(3)
    has_started(1)
    scaled_to(1)
    scaled_to(3)
    assert [pod.name for pod in kubelet.pods()] == ["many-0", "many-1", "many-2"]
    has_started(2)


# --- nodes -----------------------------------------------------------------------------------------------


def test_a_drain_evicts_one_pod_after_the_other_where_a_budget_says_so(start: Start) -> None:
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "small"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}},
    }
    kubelet = start(budget, stateful(LEAVES, replicas=4))
    run_all(kubelet)
    kubelet.wait(lambda: all("up" in kubelet.logs(pod.name) for pod in kubelet.pods()), 20, "all programs")
    moved = [pod for pod in kubelet.pods() if pod.place.node == "node-a"]
    assert len(moved) == 2
    least = len(kubelet.pods())

    def watched() -> bool:
        nonlocal least
        least = min(least, sum(not pod.leaving for pod in kubelet.pods()))
        return not kubelet.evict_from("node-a")

    kubelet.cordon("node-a")
    kubelet.wait(watched, 20, "the drain")
    assert least == 3
    run_all(kubelet)
    assert {pod.place.node for pod in kubelet.pods()} == {"node-b"}
    assert all(pod.disrupted and pod.exits == [75] for pod in moved)


# --- Job -------------------------------------------------------------------------------------------------

INDEX = "import os, sys; index = int(os.environ['JOB_COMPLETION_INDEX'])\n"


def over(kubelet: Kubelet) -> str:
    kubelet.wait(lambda: kubelet.job("work").condition, 20, "the end of the job")
    return f"{kubelet.job('work').condition} {kubelet.job('work').reason}".strip()


def test_a_job_is_complete_when_every_index_has_ended_well(start: Start) -> None:
    kubelet = start(job(INDEX + "print(index, os.uname().nodename)", 3))
    assert over(kubelet) == "Complete"
    assert [kubelet.logs(f"work-{index}") for index in range(3)] == [f"{i} work-{i}\n" for i in range(3)]


def test_an_index_that_dies_too_often_fails_the_job_when_the_others_are_done(start: Start) -> None:
    kubelet = start(job(INDEX + "sys.exit(index)", 2, deaths=1))
    assert over(kubelet) == "Failed FailedIndexes: [1]"
    assert kubelet.job("work").succeeded == {0}
    assert len([pod for pod in kubelet.pods() if pod.index == 1]) == 2


@pytest.mark.parametrize(
    ("rule", "ending"),
    [
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [64]}}, "PodFailurePolicy"),
        ({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}, "PodFailurePolicy"),
        ({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [64]}}, "FailedIndexes: [1]"),
        ({"action": "Count", "onExitCodes": {"operator": "In", "values": [64]}}, "FailedIndexes: [1]"),
    ],
)
def test_a_rule_for_an_exit_code_decides_what_a_failure_does(
    start: Start, rule: Mapping[str, Any], ending: str
) -> None:
    kubelet = start(
        job(INDEX + "sys.exit(64 * index)", 2, deaths=0 if rule["action"] == "Count" else 9, rules=[rule])
    )
    assert over(kubelet).startswith(f"Failed {ending}")


def test_ignored_exits_and_evictions_do_not_count(start: Start) -> None:
    rules = [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [69]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    kubelet = start(job(LEAVES, 1, deaths=0, rules=rules), nodes=("node-a", "node-b"))
    kubelet.wait(lambda: "up" in kubelet.logs("work-0"), 20, "the program")
    kubelet.drain("node-a", 20)
    kubelet.wait(lambda: kubelet.logs("work-0").count("up") == 2, 20, "its successor")
    assert kubelet.job("work").failures == {}
    kubelet.delete_pod("work-0")  # of no rule: exit code 75, and not evicted
    assert over(kubelet) == "Failed FailedIndexes: [0]"


def test_a_job_may_grow_and_shrink_while_it_runs(start: Start) -> None:
    kubelet = start(job(LEAVES, 1, deaths=0))
    kubelet.wait(kubelet.pods, 20, "a pod")
    kubelet.scale("Job/work", 3)
    kubelet.wait(lambda: all("up" in kubelet.logs(f"work-{one}") for one in range(3)), 20, "three")
    kubelet.scale("Job/work", 1)
    kubelet.wait(lambda: [pod.index for pod in kubelet.pods()] == [0], 20, "one")
    assert kubelet.job("work").condition == ""


# --- manifests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("podManagementPolicy",), "OrderedReady", "knows podManagementPolicy: Parallel only"),
        (("updateStrategy",), {"type": "OnDelete"}, "does not keep spec.updateStrategy.type"),
        (("template", "spec", "hostNetwork"), True, "does not keep spec.template.spec.hostNetwork"),
    ],
)
def test_a_field_that_the_stand_in_does_not_keep_is_refused(
    start: Start, path: tuple[str, ...], value: Any, line: str
) -> None:
    manifest = stateful(SLEEPS, replicas=2)
    place = manifest["spec"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=line):
        start(manifest)
