"""Manifests of jobs for Kubernetes: valid for its schemas, and each promise read back from them."""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubeflow_trainer_api.models as kubeflow
import kubernetes_validate
import pytest
import yaml

from launch.cli.main import main
from launch.cli.serve import serve_command
from launch.job.job import read_job
from launch.places.identity import GivenIdentity, identity_of_process
from launch.places.kubernetes.manifests import Mount, name_of, quantity
from pslib.errors import ConfigurationError
from pslib.transport.keys import Keys, make_keys, write_keys
from tests.support.job_folder import refused

ROOT = Path(__file__).parents[4]
NEWEST_TWO = ("1.37", "1.36")
ROLES = ("coordinator", "server", "trainer")
JOB = """\
data:
  train: {train}
  schema: {{label: click, dense: [price], sparse: [user, item]}}
model: {{name: deepfm, dim: 8, hidden: [32]}}
cluster: {{servers: {servers}, trainers: {trainers}, durability: log}}
checkpoint: {{path: {path}, keep_last: 2}}
{more}"""
SMALL = {"servers": 1, "trainers": 1, "train": "/data/train", "path": "/data/checkpoint", "more": ""}
ON_DATA = ("--mount", "clicks:/data")
SERVED = {"more": "serve: {}\n"}
ON_LOGS = ("--mount", "logs:/logs:ro")
PROBES = ("startup", "readiness", "liveness")
KEYS = {"coordinator": ["server", "admin"], "server": ["server"], "trainer": ["trainer"]}
STORE = {"train": "s3://clicks/train", "path": "s3://clicks/checkpoint"}
JOBS: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "small": ({}, ON_DATA),
    "large": ({"servers": 64, "trainers": 256}, (*ON_DATA, "--rows", "5e9", "--storage-class", "fast")),
    "open": ({}, (*ON_DATA, "--insecure-network")),
    "store": (STORE, ("--env-from", "s3-access")),
    "stream": (
        {"more": "training: {staleness: 4}\n"},
        ("--mount", "clicks:/data", "--mount", "logs:/logs:ro"),
    ),
    "scorers": (
        {**STORE, "more": "serve: {replicas: {min: 2, max: 6}, threads: 3, drain_s: 20, refresh_s: 2.5}\n"},
        ("--env-from", "s3-access"),
    ),
    "queued": ({"servers": 4, "trainers": 8}, (*ON_DATA, "--queue", "team-a")),
}
"""Jobs that differ in what the manifests say: changes of the small one, and options."""


def render(folder: Path, changes: Mapping[str, Any], options: Sequence[str]) -> Path:
    job = folder / "clicks.yaml"
    job.write_text(JOB.format(**{**SMALL, **changes}))
    out = folder / "k8s"
    command = ["k8s", "render", str(job), "--image", "registry/pslib:1", "--out", str(out), *options]
    assert main(command) == 0
    return out


@pytest.fixture(params=JOBS)
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return render(tmp_path, *JOBS[request.param])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return render(tmp_path, {"servers": 3, "trainers": 5}, ON_DATA)


def read(file: Path) -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return plain


def base(folder: Path) -> dict[str, dict[str, Any]]:
    """Objects of the base by kind and name, as its kustomization lists them."""
    names = read(folder / "base" / "kustomization.yaml")["resources"]
    assert sorted(names) == sorted(
        one.name for one in (folder / "base").iterdir() if one.name != "kustomization.yaml"
    )
    objects = [read(folder / "base" / name) for name in names]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}


def pod_of(objects: Mapping[str, Any], role: str) -> dict[str, Any]:
    kind = {"trainer": "Job", "scorer": "Deployment"}.get(role, "StatefulSet")
    pod: dict[str, Any] = objects[f"{kind}/clicks-{role}"]["spec"]["template"]
    return pod


def container_of(objects: Mapping[str, Any], role: str) -> dict[str, Any]:
    containers = pod_of(objects, role)["spec"]["containers"]
    assert len(containers) == 1
    container: dict[str, Any] = containers[0]
    return container


def environment_of(container: Mapping[str, Any], address: str = "10.1.2.3") -> dict[str, str]:
    """Variables that a kubelet would set."""
    return {one["name"]: one.get("value", address) for one in container["env"]}


# --- schemas


@pytest.mark.parametrize("version", NEWEST_TWO)
def test_every_object_of_the_base_is_valid_without_unknown_fields(rendered: Path, version: str) -> None:
    for name, plain in base(rendered).items():
        assert kubernetes_validate.validate(plain, version, strict=True), name


def assert_known(model: Any, plain: Mapping[str, Any]) -> None:
    """Require that a generated model reads all of an object: it drops fields that it does not know."""
    assert_within(plain, model.from_dict(plain).to_dict())


def assert_within(plain: Any, read: Any) -> None:
    """Require that all of a value is in another one, which may have further fields, of defaults."""
    if isinstance(plain, Mapping):
        assert plain.keys() <= read.keys()
        for name in plain:
            assert_within(plain[name], read[name])
    elif isinstance(plain, list):
        for one, other in zip(plain, read, strict=True):
            assert_within(one, other)
    else:
        assert plain == read


def test_the_jobset_is_one_of_its_api(rendered: Path) -> None:
    assert_known(kubeflow.JobsetV1alpha2JobSet, read(rendered / "overlays/jobset/jobset.yaml"))


def test_the_trainjob_and_its_runtime_are_those_of_its_api(rendered: Path) -> None:
    folder = rendered / "overlays/trainjob"
    assert_known(kubeflow.TrainerV1alpha1ClusterTrainingRuntime, read(folder / "runtime.yaml"))
    assert_known(kubeflow.TrainerV1alpha1TrainJob, read(folder / "trainjob.yaml"))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, which builds the overlays")
@pytest.mark.parametrize("overlay", ["base", "overlays/jobset", "overlays/trainjob", "overlays/kueue"])
def test_kustomize_builds_the_base_and_each_overlay(tmp_path: Path, overlay: str) -> None:
    folder = render(tmp_path, *JOBS["queued"])
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder / overlay)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(built.stdout)]
    own = {"overlays/jobset": ["JobSet"], "overlays/trainjob": ["ClusterTrainingRuntime", "TrainJob"]}
    if overlay in own:
        assert set(own[overlay]) <= set(kinds)
        assert not {"StatefulSet", "Job", "Service"} & set(kinds)
    else:
        assert kinds.count("StatefulSet") == 2
    if overlay == "overlays/kueue":
        jobs = [one for one in yaml.safe_load_all(built.stdout) if one["kind"] in ("Job", "StatefulSet")]
        assert {one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for one in jobs} == {"team-a"}


# --- promises


def test_a_pod_knows_its_rank_its_coordinator_and_its_cluster_by_the_contract(small: Path) -> None:
    objects = base(small)
    for role, host in (("server", "clicks-server-2"), ("trainer", "clicks-trainer-2-x7k")):
        environment = environment_of(container_of(objects, role))
        environment |= {"JOB_COMPLETION_INDEX": "2"} if role == "trainer" else {}
        found = identity_of_process(role, GivenIdentity(), environment, host)
        assert (found.rank, found.cluster_id) == (2, "clicks")
        assert found.coordinator == "tcp://clicks-coordinator-0.clicks:7077"
    environment = environment_of(container_of(objects, "coordinator"))
    found = identity_of_process("coordinator", GivenIdentity(), environment, "clicks-coordinator-0")
    assert found.listen == "tcp://10.1.2.3:7077"


def test_names_of_pods_are_known_before_they_are_ready(small: Path) -> None:
    service = base(small)["Service/clicks"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for role in ("coordinator", "server"):
        assert base(small)[f"StatefulSet/clicks-{role}"]["spec"]["serviceName"] == "clicks"


def test_numbers_of_pods_are_those_of_the_job(small: Path) -> None:
    objects = base(small)
    servers, trainers = objects["StatefulSet/clicks-server"]["spec"], objects["Job/clicks-trainer"]["spec"]
    assert objects["StatefulSet/clicks-coordinator"]["spec"]["replicas"] == 1
    assert servers["replicas"] == 3
    assert servers["podManagementPolicy"] == "Parallel"
    assert trainers["completions"] == trainers["parallelism"] == 5
    assert trainers["completionMode"] == "Indexed"


def test_coordinator_and_servers_have_a_volume_each_for_journal_and_log(small: Path) -> None:
    for role in ("coordinator", "server"):
        spec = base(small)[f"StatefulSet/clicks-{role}"]["spec"]
        (claim,) = spec["volumeClaimTemplates"]
        (mount,) = [one for one in container_of(base(small), role)["volumeMounts"] if one["name"] == "state"]
        assert claim["metadata"]["name"] == "state"
        command = container_of(base(small), role)["command"]
        assert command[command.index("--log") + 1] == mount["mountPath"]


def test_a_servers_volume_holds_its_log_at_its_longest(small: Path) -> None:
    (claim,) = base(small)["StatefulSet/clicks-server"]["spec"]["volumeClaimTemplates"]
    log_gib = 3 * 4  # three times the tables of a server of 4 GiB, more than cluster.log_bytes
    assert claim["spec"]["resources"]["requests"]["storage"] == f"{log_gib * 3 // 2}Gi"


def test_a_failed_pod_counts_by_its_exit_code(small: Path) -> None:
    spec = base(small)["Job/clicks-trainer"]["spec"]
    wrong, away, disrupted = spec["podFailurePolicy"]["rules"]
    assert (wrong["action"], wrong["onExitCodes"]["values"]) == ("FailJob", [64])
    assert (away["action"], away["onExitCodes"]["values"]) == ("Ignore", [69, 75])
    assert wrong["onExitCodes"]["operator"] == away["onExitCodes"]["operator"] == "In"
    assert {wrong["onExitCodes"]["containerName"]} == {container_of(base(small), "trainer")["name"]}
    assert (disrupted["action"], disrupted["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["backoffLimitPerIndex"] == 10
    assert pod_of(base(small), "trainer")["spec"]["restartPolicy"] == "Never"


def test_probes_ask_the_process_and_a_stop_waits_for_its_work(small: Path) -> None:
    for role in ROLES:
        container = container_of(base(small), role)
        paths = {
            kind: container[f"{kind}Probe"]["httpGet"]["path"]
            for kind in ("startup", "readiness", "liveness")
        }
        assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
        (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "health"]
        command = container["command"]
        assert command[command.index("--health") + 1] == str(port)
        assert pod_of(base(small), role)["spec"]["terminationGracePeriodSeconds"] > 20


def test_nothing_is_privileged(rendered: Path) -> None:
    served = "Deployment/clicks-scorer" in base(rendered)
    for role in (*ROLES, "scorer") if served else ROLES:
        spec, container = pod_of(base(rendered), role)["spec"], container_of(base(rendered), role)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert "runAsUser" not in spec["securityContext"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_each_role_has_its_own_key_and_no_other(small: Path) -> None:
    secret = base(small)["Secret/clicks-keys"]["stringData"]
    for role, files in (
        ("coordinator", ["server", "admin"]),
        ("server", ["server"]),
        ("trainer", ["trainer"]),
    ):
        (volume,) = [one for one in pod_of(base(small), role)["spec"]["volumes"] if one["name"] == "keys"]
        assert [one["key"] for one in volume["secret"]["items"]] == [f"{file}.keys" for file in files]
        own = environment_of(container_of(base(small), role))["PSLIB_KEYS"].rpartition("/")[2]
        assert own == f"{files[0]}.keys"
        assert Keys.from_text(secret[own].strip(), own).role == files[0]
        assert "--insecure-network" not in container_of(base(small), role)["command"]
    assert stat.S_IMODE((small / "base" / "keys.yaml").stat().st_mode) == 0o600


def test_without_encryption_there_is_no_secret(tmp_path: Path) -> None:
    folder = render(tmp_path, *JOBS["open"])
    assert not any(name.startswith("Secret/") for name in base(folder))
    for role in ("coordinator", "server"):
        assert "--insecure-network" in container_of(base(folder), role)["command"]


def test_keys_of_a_folder_are_those_of_the_secret(tmp_path: Path) -> None:
    keys = make_keys()
    write_keys(tmp_path / "keys", keys)
    folder = render(tmp_path, {}, (*ON_DATA, "--keys", str(tmp_path / "keys")))
    secret = base(folder)["Secret/clicks-keys"]["stringData"]
    assert Keys.from_text(secret["trainer.keys"].strip(), "it") == keys["trainer"]


def test_the_job_of_the_pods_is_the_job_with_records_on_the_coordinators_volume(small: Path) -> None:
    text = base(small)["ConfigMap/clicks-job"]["data"]["job.yaml"]
    (small / "again.yaml").write_text(text)
    job = read_job(small / "again.yaml")
    assert (job.cluster.servers, job.cluster.trainers, job.cluster.durability) == (3, 5, "log")
    assert job.out == "/var/lib/pslib/run"
    assert job.checkpoint.path == "/data/checkpoint"


def test_volumes_and_secrets_that_are_named_are_in_every_pod(tmp_path: Path) -> None:
    options = ("--mount", "clicks:/data", "--mount", "models:/models:ro", "--env-from", "s3-access")
    folder = render(tmp_path, {}, options)
    for role in ROLES:
        container = container_of(base(folder), role)
        mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
        assert (mounts["/data"], mounts["/models"]) == (False, True)
        assert container["envFrom"] == [{"secretRef": {"name": "s3-access"}}]


@pytest.mark.parametrize("name", ["123", "true", "null", "1e3", "0x1", "2026-11-28", "1.5", "yes"])
def test_a_name_that_yaml_takes_for_another_type_stays_a_text(tmp_path: Path, name: str) -> None:
    own = ("--mount", f"{name}:/data", "--env-from", name, "--storage-class", name, "--queue", name)
    out = render(tmp_path, {}, (*own, "--image", name))
    container = container_of(base(out), "server")
    pod = pod_of(base(out), "server")["spec"]
    claims = base(out)["StatefulSet/clicks-server"]["spec"]["volumeClaimTemplates"]
    queue = read(out / "overlays" / "kueue" / "kustomization.yaml")["labels"][0]["pairs"]
    assert container["image"] == name
    assert container["envFrom"] == [{"secretRef": {"name": name}}]
    assert {"name": "data-0", "persistentVolumeClaim": {"claimName": name}} in pod["volumes"]
    assert claims[0]["spec"]["storageClassName"] == name
    assert queue == {"kueue.x-k8s.io/queue-name": name}
    text = (out / "base" / "servers.yaml").read_text().replace('prometheus.io/scrape: "true"', "")
    assert text.count(f'"{name}"') == 4  # quoted: YAML 1.2 reads 1e3 as a number, which PyYAML does not


def test_only_pods_of_the_job_reach_it_and_a_drain_takes_one_server_at_a_time(small: Path) -> None:
    policy, budget = (
        base(small)["NetworkPolicy/clicks"]["spec"],
        base(small)["PodDisruptionBudget/clicks-server"],
    )
    (rule,) = policy["ingress"]
    assert [one["port"] for one in rule["ports"]] == [7077, 7078]
    labels = pod_of(base(small), "server")["metadata"]["labels"]
    for selector in (rule["from"][0]["podSelector"], policy["podSelector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("role", ROLES)
def test_prometheus_finds_the_metrics_of_every_pod_at_its_health_port(small: Path, role: str) -> None:
    told = pod_of(base(small), role)["metadata"]["annotations"]
    ports = {one["name"]: one["containerPort"] for one in container_of(base(small), role)["ports"]}
    assert told == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(ports["health"]),
        "prometheus.io/path": "/metrics",
    }


def test_memory_of_a_server_is_what_the_planner_counts_for_its_rows(tmp_path: Path) -> None:
    def gib(rows: str, servers: int) -> float:
        folder = tmp_path / f"{rows}-{servers}"
        folder.mkdir()
        made = render(folder, {"servers": servers}, (*ON_DATA, "--rows", rows))
        memory = container_of(base(made), "server")["resources"]["limits"]["memory"]
        assert memory.endswith("Gi")
        return float(memory.removesuffix("Gi"))

    # 9 floats of a row and their sums of Adagrad, a key, and the index: some 90 bytes; a GiB of messages
    one, four = gib("1e9", 1), gib("1e9", 4)
    assert 100 < one < 150
    assert four == pytest.approx(one / 4, rel=0.1)


def test_a_jobset_starts_trainers_after_servers_and_is_done_when_they_are(small: Path) -> None:
    spec = read(small / "overlays/jobset/jobset.yaml")["spec"]
    jobs = {one["name"]: one for one in spec["replicatedJobs"]}
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    assert jobs["server"]["dependsOn"] == [{"name": "coordinator", "status": "Ready"}]
    assert jobs["trainer"]["dependsOn"] == [{"name": "server", "status": "Ready"}]
    pod = jobs["server"]["template"]["spec"]["template"]["spec"]
    environment = environment_of(pod["containers"][0]) | {"JOB_COMPLETION_INDEX": "1"}
    found = identity_of_process("server", GivenIdentity(), environment, "clicks-server-0-1")
    assert (found.rank, found.coordinator) == (1, "tcp://clicks-coordinator-0-0.clicks:7077")
    (state,) = [one for one in pod["volumes"] if one["name"] == "state"]
    claim = read(small / "overlays/jobset/volumes.yaml")
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for role, one in jobs.items():
        own = one["template"]["metadata"]["labels"]
        assert own == one["template"]["spec"]["template"]["metadata"]["labels"]
        assert own["app.kubernetes.io/component"] == role  # as pslib k8s status finds it


def test_a_trainjob_finds_its_trainers_in_the_runtime(small: Path) -> None:
    runtime, job = (read(small / f"overlays/trainjob/{name}.yaml") for name in ("runtime", "trainjob"))
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    trainers = {one["name"]: one for one in runtime["spec"]["template"]["spec"]["replicatedJobs"]}["trainer"]
    label = trainers["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert label == "trainer"
    (container,) = trainers["template"]["spec"]["template"]["spec"]["containers"]
    rules = trainers["template"]["spec"]["podFailurePolicy"]["rules"]
    assert {container["name"]} == {
        one["onExitCodes"]["containerName"] for one in rules if "onExitCodes" in one
    }


# --- scorers


def test_scorers_serve_the_checkpoints_of_the_job_at_every_address_of_their_pods(tmp_path: Path) -> None:
    folder = render(tmp_path, *JOBS["scorers"])
    container = container_of(base(folder), "scorer")
    own = ["--threads", "3", "--refresh-s", "2.5", "--wait-s", "3600", "--drain-s", "20"]
    where = ["clicks=s3://clicks/checkpoint", "--host", "::", "--port", "8080"]
    assert container["command"] == ["pslib", "serve", *where, *own]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-access"}}]
    assert [one["name"] for one in container["env"]] == ["HOME"]
    assert [one["name"] for one in pod_of(base(folder), "scorer")["spec"]["volumes"]] == ["tmp"]
    assert set(own[::2]) <= {option for one in serve_command.params for option in one.opts}


def test_scorers_see_the_volume_of_the_checkpoints_alone_and_can_not_write_it(tmp_path: Path) -> None:
    folder = render(tmp_path, SERVED, (*ON_DATA, *ON_LOGS))
    container, spec = container_of(base(folder), "scorer"), pod_of(base(folder), "scorer")["spec"]
    assert container["command"][2] == "clicks=/data/checkpoint"
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounts == {"/tmp": False, "/data": True}
    claims = [one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"claimName": "clicks"}]


def test_scorers_of_a_job_without_a_place_of_checkpoints_read_its_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(
        JOB.format(**SMALL).replace("checkpoint: {path: /data/checkpoint, keep_last: 2}", "out: /data/run")
        + "serve: {}\n"
    )
    out = tmp_path / "k8s"
    words = ["k8s", "render", str(tmp_path / "clicks.yaml"), "--image", "i", "--out", str(out), *ON_DATA]
    assert main(words) == 0
    assert container_of(base(out), "scorer")["command"][2] == "clicks=/data/run"


def test_probes_ask_a_scorer_and_a_stop_waits_until_no_more_requests_come(tmp_path: Path) -> None:
    folder = render(tmp_path, *JOBS["scorers"])
    container, spec = container_of(base(folder), "scorer"), pod_of(base(folder), "scorer")["spec"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in PROBES}
    ready, live = "/v2/health/ready", "/v2/health/live"
    assert paths == {"startup": ready, "readiness": ready, "liveness": live}
    (port,) = [one["containerPort"] for one in container["ports"] if one["name"] == "http"]
    assert container["command"][container["command"].index("--port") + 1] == str(port)
    unseen_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > 20 + unseen_s > 20
    assert container["resources"] == {"requests": {"cpu": "3", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}


def test_scorers_become_more_by_their_cpu_time_within_the_range(tmp_path: Path) -> None:
    objects = base(render(tmp_path, *JOBS["scorers"]))
    scaling = objects["HorizontalPodAutoscaler/clicks-scorer"]["spec"]
    assert (scaling["minReplicas"], scaling["maxReplicas"]) == (2, 6)
    assert scaling["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "clicks-scorer",
    }
    (metric,) = scaling["metrics"]
    assert metric["resource"]["name"] == "cpu"
    assert "replicas" not in objects["Deployment/clicks-scorer"]["spec"]  # else each apply would set it back


def test_scorers_of_a_fixed_number_have_no_autoscaler(tmp_path: Path) -> None:
    options = (*ON_DATA, "--scorer-memory", "9Gi", "--scorer-cpu", "500m")
    objects = base(render(tmp_path, {"more": "serve: {replicas: 3}\n"}, options))
    assert objects["Deployment/clicks-scorer"]["spec"]["replicas"] == 3
    assert "HorizontalPodAutoscaler/clicks-scorer" not in objects
    requests = container_of(objects, "scorer")["resources"]["requests"]
    assert requests == {"cpu": "500m", "memory": "9Gi"}


def test_requests_reach_scorers_and_nothing_else_does_and_they_reach_no_server(tmp_path: Path) -> None:
    objects = base(render(tmp_path, SERVED, ON_DATA))
    labels = pod_of(objects, "scorer")["metadata"]["labels"]
    service, policy = objects["Service/clicks-scorer"]["spec"], objects["NetworkPolicy/clicks-scorer"]["spec"]
    budget, deployment = (
        objects["PodDisruptionBudget/clicks-scorer"]["spec"],
        objects["Deployment/clicks-scorer"]["spec"],
    )
    (port,) = service["ports"]
    ports = {one["name"]: one["containerPort"] for one in container_of(objects, "scorer")["ports"]}
    assert policy["ingress"] == [
        {"from": [{"podSelector": {}}], "ports": [{"port": ports[port["targetPort"]]}]}
    ]
    assert budget["maxUnavailable"] == 1
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    for selector in (service["selector"], *(one["matchLabels"] for one in (
        policy["podSelector"], budget["selector"], deployment["selector"]
    ))):  # fmt: skip
        assert selector.items() == labels.items()
    ((allowed,),) = (rule["from"] for rule in objects["NetworkPolicy/clicks"]["spec"]["ingress"])
    assert allowed["podSelector"]["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["scorer"]}
    ]


# --- wrong input


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({}, (), "data.train: expected a URI or a path on a volume that all pods see"),
        ({}, ("--mount", "clicks"), "--mount: expected CLAIM:/path or CLAIM:/path:ro, got 'clicks'"),
        ({}, ("--mount", "clicks:/data:rx"), "--mount: 'clicks:/data:rx': expected ro or rw"),
        ({}, ("--mount", "clicks:/data:ro"), "checkpoint.path: expected a URI or a path on a volume"),
        ({}, ("--mount", "clicks:/my data"), "--mount: expected CLAIM:/path or CLAIM:/path:ro"),
        ({}, ("--mount", "clicks:/tmp/data"), "--mount: /tmp/data: expected a path beside /tmp"),
        ({}, (*ON_DATA, "--mount", "other:/data/"), "--mount: /data: expected one volume there, got 2"),
        ({}, (*ON_DATA, "--env-from", "a, b"), "--env-from: expected a name as team-a, got 'a, b'"),
        ({}, (*ON_DATA, "--queue", "{}"), "--queue: expected a name as team-a, got '{}'"),
        ({}, (*ON_DATA, "--name", "2026"), "--name: expected up to 40 lower case letters"),
        ({}, (*ON_DATA, "--name", "My_Job"), "--name: expected up to 40 lower case letters"),
        ({}, (*ON_DATA, "--server-memory", "lots"), "--server-memory: expected a size as 16Gi"),
        (
            {},
            (*ON_DATA, "--trainer-cpu", "four"),
            "--trainer-cpu: expected cores as 4 or 500m, from 1m to 4096, got 'four'",
        ),
        ({}, (*ON_DATA, "--image", "a b"), "--image: expected an image as registry/pslib:1, got 'a b'"),
        ({}, (*ON_DATA, "--set", "cluster.durability=memory"), "cluster.durability: expected log or disk"),
        ({}, (*ON_DATA, "--set", "cluster.recovery=rollback"), "cluster.recovery: expected log or partial"),
        ({}, (*ON_DATA, "--keys", "no-such-folder"), "no-such-folder/server.keys: No such file"),
        (
            {"train": "s3://me:word@clicks/x"},
            ON_DATA,
            "data.train: expected a URI without keys, since the job",
        ),
        ({}, (*ON_DATA, "--image", "i:"), "--image: expected an image as registry/pslib:1, got 'i:'"),
        (
            {},
            (*ON_DATA, "--server-memory", "16"),
            "--server-memory: expected a size as 16Gi or 800Mi, from 64Mi to 1048576Gi, got '16'",
        ),
        ({}, (*ON_DATA, "--server-memory", "9" * 20 + "Gi"), "--server-memory: expected a size as 16Gi"),
        (
            {},
            (*ON_DATA, "--server-cpu", "0"),
            "--server-cpu: expected cores as 4 or 500m, from 1m to 4096, got '0'",
        ),
        ({}, (*ON_DATA, "--trainer-cpu", "\u0663"), "--trainer-cpu: expected cores as 4 or 500m"),
        ({}, (*ON_DATA, "--queue", "q" * 64), "--queue: expected up to 63 characters, got 64"),
        ({}, (*ON_DATA, "--env-from", "a..b"), "--env-from: expected a name as team-a, got 'a..b'"),
        (SERVED, (*ON_DATA, "--scorer-cpu", "none"), "--scorer-cpu: expected cores as 4 or 500m"),
        (
            SERVED,
            (*ON_LOGS, "--mount", "d:/data:ro"),
            "checkpoint.path: expected a URI or a path on a volume",
        ),
        (
            {"more": "serve: {replicas: {min: 4, max: 2}}"},
            ON_DATA,
            "serve.replicas_max: expected 0, or replicas (4) or more, got 2",
        ),
        ({}, ("--mount", "clicks:/data/../etc/pslib"), "--mount: expected CLAIM:/path or CLAIM:/path:ro"),
        (
            {"train": [f"/data/{n}" * 9 for n in range(4000)]},
            ON_DATA,
            "the job file: expected at most 200,000",
        ),
    ],
)
def test_wrong_input_is_one_line_and_no_file(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: Mapping[str, Any],
    options: Sequence[str],
    line: str,
) -> None:
    (tmp_path / "clicks.yaml").write_text(JOB.format(**{**SMALL, **changes}))
    command = ["k8s", "render", str(tmp_path / "clicks.yaml"), "--image", "i", "--out", str(tmp_path / "k8s")]
    assert refused(capsys, *command, *options)[0].startswith(line)
    assert not (tmp_path / "k8s").exists()


def test_a_job_that_sets_no_place_of_checkpoints_is_told_its_own_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "clicks.yaml"
    text = JOB.format(**SMALL)
    text = text.replace("checkpoint: {path: /data/checkpoint, keep_last: 2}", "out: runs/clicks")
    job.write_text(text)
    command = ["k8s", "render", str(job), "--image", "i", "--out", str(tmp_path / "k8s"), *ON_DATA]
    (line,) = refused(capsys, *command)
    assert line == (
        "out (for checkpoints; or set checkpoint.path): expected a URI or a path on a volume that all pods "
        f"see (--mount CLAIM:/path), got {tmp_path}/runs/clicks"
    )
    job.write_text(text.replace("runs/clicks", "/data/runs/clicks"))
    assert main(command) == 0


def test_the_job_file_of_the_guide_is_rendered_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/guide/deploy.md").read_text(encoding="utf-8").partition("## Kubernetes")[2]
    job, commands = (page.partition(f"```{kind}\n")[2].partition("```")[0] for kind in ("yaml", "sh"))
    monkeypatch.chdir(tmp_path)
    Path("clicks.yaml").write_text(job)
    (line,) = [line for line in commands.splitlines() if line.startswith("pslib k8s render")]
    assert main(shlex.split(line)[1:]) == 0
    assert read(Path("k8s/base/servers.yaml"))["spec"]["replicas"] == 2


def test_manifests_that_exist_are_not_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may hold the keys of a cluster that runs."""
    folder = render(tmp_path, {}, ON_DATA)
    capsys.readouterr()
    before = (folder / "base" / "keys.yaml").read_text()
    command = ["k8s", "render", str(tmp_path / "clicks.yaml"), "--image", "i", "--out", str(folder), *ON_DATA]
    assert refused(capsys, *command) == [f"{folder / 'base'}: exists; give another --out, or --overwrite"]
    assert (folder / "base" / "keys.yaml").read_text() == before
    assert main([*command, "--overwrite"]) == 0
    assert (folder / "base" / "keys.yaml").read_text() != before


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Clicks_2026.v1", "clicks-2026-v1"),
        ("-a-", "a"),
        ("___", "job"),
        ("x" * 50, "x" * 40),
        ("2026", "job-2026"),
        ("On", "job-on"),
    ],
)
def test_a_name_that_kubernetes_takes_is_made_of_any_text(text: str, name: str) -> None:
    assert name_of(text) == name


def test_sizes_are_rounded_up() -> None:
    assert quantity(1) == "1Mi"
    assert quantity((1 << 30) + 1) == "1025Mi"
    assert quantity(20.5 * (1 << 30)) == "21Gi"


def test_a_mount_holds_what_is_below_its_path_only() -> None:
    mount = Mount.of_text("claim:/data")
    assert mount.holds("/data/train")
    assert not mount.holds("/database")
    with pytest.raises(ConfigurationError):
        Mount.of_text("claim:data")
