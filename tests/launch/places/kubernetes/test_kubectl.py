"""Calls of kubectl: each is printed and passed on as it is; a stand-in notes what it was asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.job.preflight import hold_port
from launch.places.kubernetes.kubectl import OWNED
from tests.support.job_folder import refused

OF_CLICKS = "app.kubernetes.io/name=pslib,app.kubernetes.io/instance=clicks"
EXEC = ["exec", "clicks-coordinator-0", "--", "pslib"]
KEYS = ["--keys", "/etc/pslib/keys/admin.keys"]
ASKS = ["get", "secret", "clicks-keys", "--ignore-not-found", "--output", "name"]

FINDS = [
    "get", "statefulsets,jobs", "--selector", f"{OF_CLICKS},app.kubernetes.io/component=coordinator",
    "--output", f"jsonpath={OWNED}",
]  # fmt: skip

Calls = Callable[[], list[list[str]]]


def shown(kinds: str) -> list[str]:
    """The call that shows the objects of a job."""
    return ["get", f"{kinds}statefulsets,jobs,deployments,pods", "--selector", OF_CLICKS, "--output", "wide"]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A stand-in of kubectl: three servers run, and the job has keys; returns the reader of its calls.

    `answer` gives it other answers.
    """
    noted = tmp_path / "calls"
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(
        "#!/usr/bin/env python3\n"
        "import json, sys\n"
        f"open({str(noted)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "words = ' '.join(sys.argv[1:])\n"
        f"told = json.load(open({str(tmp_path / 'answers')!r}))\n"
        "print(next((said for asked, said in told.items() if words.startswith(asked)), 'done'))\n"
        "sys.exit(7 if 'broken' in words else 0)\n"
    )
    program.chmod(0o755)
    answer(tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return lambda: [json.loads(line) for line in noted.read_text().splitlines()]


def answer(tmp_path: Path, coordinator: str = "StatefulSet clicks-coordinator ", **others: str) -> None:
    """Set what the stand-in answers, by the beginning of a call; the first one counts."""
    told = {
        "get statefulsets,jobs --selector": coordinator,
        "get statefulset clicks-server": "3",
        "get secret": "secret/clicks-keys",
        **{asked.replace("_", " "): said for asked, said in others.items()},
    }
    (tmp_path / "answers").write_text(json.dumps(told))


def test_apply_gives_kustomize_the_base_or_an_overlay(calls: Calls, tmp_path: Path) -> None:
    for place in ("base", "overlays/jobset"):
        (tmp_path / "k8s" / place).mkdir(parents=True)
        (tmp_path / "k8s" / place / "kustomization.yaml").touch()
    assert main(["k8s", "apply", str(tmp_path / "k8s"), "--namespace", "ads"]) == 0
    assert main(["k8s", "apply", str(tmp_path / "k8s"), "--overlay", "jobset"]) == 0
    assert calls() == [
        ["--namespace", "ads", "apply", "--kustomize", str(tmp_path / "k8s" / "base")],
        ["apply", "--kustomize", str(tmp_path / "k8s" / "overlays/jobset")],
    ]


def test_a_folder_without_manifests_is_refused(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(capsys, "k8s", "apply", tmp_path)
    assert line == f"{tmp_path / 'base'}: expected manifests of pslib k8s render there"


def test_more_servers_start_before_rows_move_and_fewer_end_after_that(calls: Calls) -> None:
    asks = ["get", "statefulset", "clicks-server", "--output", "jsonpath={.spec.replicas}"]

    def pods(number: str) -> list[str]:
        return ["scale", "statefulset", "clicks-server", "--replicas", number]

    def rows(number: str) -> list[str]:
        return [*EXEC, "scale", "--servers", number, *KEYS]

    assert main(["k8s", "scale", "clicks", "--servers", "5"]) == 0
    assert main(["k8s", "scale", "clicks", "--servers", "2"]) == 0
    more, fewer = [FINDS, asks, ASKS, pods("5"), rows("5")], [FINDS, asks, ASKS, rows("2"), pods("2")]
    assert calls() == more + fewer


def test_trainers_change_by_parallelism_and_completions_together(calls: Calls) -> None:
    assert main(["k8s", "scale", "clicks", "--trainers", "8"]) == 0
    found, (*words, patch) = calls()
    assert found == FINDS
    assert words == ["patch", "job", "clicks-trainer", "--type", "merge", "--patch"]
    assert json.loads(patch) == {"spec": {"parallelism": 8, "completions": 8}}


def test_scorers_change_by_their_deployment_unless_an_autoscaler_decides(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = ["get", "horizontalpodautoscaler", "clicks-scorer", "--ignore-not-found", "--output", "name"]
    answer(tmp_path, get_horizontalpodautoscaler="")
    assert main(["k8s", "scale", "clicks", "--scorers", "3"]) == 0
    assert calls() == [FINDS, asks, ["scale", "deployment", "clicks-scorer", "--replicas", "3"]]
    answer(tmp_path, get_horizontalpodautoscaler="horizontalpodautoscaler.autoscaling/clicks-scorer")
    capsys.readouterr()
    assert main(["k8s", "scale", "clicks", "--scorers", "3", "--servers", "4"]) == 64
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("pslib: clicks: an autoscaler sets the number of scorers; change serve.replicas ")
    assert calls()[3:] == [FINDS, asks]


@pytest.mark.parametrize(
    ("coordinator", "code", "told"),
    [
        ("Job clicks-coordinator-0 JobSet", 64, "clicks: a JobSet keeps the numbers that it began with; "),
        ("", 69, "clicks: expected a job of pslib k8s apply with a coordinator, found none"),
    ],
)
def test_a_job_that_can_not_be_scaled_is_refused_before_anything_changes(
    calls: Calls,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    coordinator: str,
    code: int,
    told: str,
) -> None:
    answer(tmp_path, coordinator, get_jobsets="")
    assert main(["k8s", "scale", "clicks", "--servers", "5"]) == code
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"pslib: {told}")
    assert all(words[0] == "get" for words in calls())


def test_status_shows_the_pods_and_what_doctor_finds(calls: Calls) -> None:
    assert main(["k8s", "status", "clicks"]) == 0
    assert calls() == [FINDS, shown(""), ASKS, [*EXEC, "doctor", *KEYS]]


@pytest.mark.parametrize(("owner", "kinds"), [("", "jobsets,"), ("TrainJob", "trainjobs,jobsets,")])
def test_of_a_jobset_status_shows_the_pods_and_finds_the_coordinator_by_its_job(
    calls: Calls, tmp_path: Path, owner: str, kinds: str
) -> None:
    answer(tmp_path, "Job clicks-coordinator-0 JobSet", get_jobsets=owner)
    assert main(["k8s", "status", "clicks"]) == 0
    asks = ["get", "jobsets", "clicks", "--output", "jsonpath={.metadata.ownerReferences[*].kind}"]
    doctor = ["exec", "job/clicks-coordinator-0", "--", "pslib", "doctor", *KEYS]
    assert calls() == [FINDS, asks, shown(kinds), ASKS, doctor]


def test_status_of_no_job_is_one_line(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(tmp_path, "")
    assert main(["k8s", "status", "clicks"]) == 69
    *asked, line = capsys.readouterr().err.splitlines()
    assert all(one.startswith("+ kubectl get ") for one in asked)
    assert line.startswith("pslib: clicks: expected a job of pslib k8s apply with a coordinator, found none")
    assert calls() == [FINDS, shown("")]


def test_logs_are_of_one_role_or_of_all(calls: Calls) -> None:
    assert main(["k8s", "logs", "clicks", "--role", "server", "--follow"]) == 0
    (words,) = calls()
    assert words[:3] == ["logs", "--selector", f"{OF_CLICKS},app.kubernetes.io/component=server"]
    assert words[-1] == "--follow"


def test_volumes_are_deleted_only_when_asked_for(calls: Calls) -> None:
    assert main(["k8s", "delete", "clicks"]) == 0
    assert main(["k8s", "delete", "clicks", "--with-state"]) == 0
    kept, gone = (words[1].split(",") for words in calls() if words[0] == "delete")
    assert set(gone) - set(kept) == {"persistentvolumeclaims"}
    assert {"deployments", "horizontalpodautoscalers"} < set(kept)


def test_what_has_made_the_jobs_is_deleted_too(calls: Calls, tmp_path: Path) -> None:
    """A JobSet would make its jobs again."""
    answer(tmp_path, "Job clicks-coordinator-0 JobSet", get_jobsets="TrainJob")
    assert main(["k8s", "delete", "clicks"]) == 0
    words = calls()[-1]
    assert {"trainjobs", "jobsets", "clustertrainingruntimes"} < set(words[1].split(","))
    assert words[2:] == ["--selector", OF_CLICKS]


def test_each_call_is_printed_before_it_runs_and_its_exit_code_is_the_commands(
    calls: Calls, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["k8s", "logs", "broken"]) == 7
    assert capfd.readouterr().err.startswith("+ kubectl logs --selector ")


def test_without_kubectl_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = refused(capsys, "k8s", "status", "clicks", code=69)
    assert line.startswith("kubectl: expected it on PATH, got none")


@pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="needs the real kubectl, whose messages are read; the calls are tested above with a stand-in",
)
@pytest.mark.parametrize(
    "words",
    [
        ("apply", "k8s"),
        ("status", "clicks"),
        ("logs", "clicks", "--follow"),
        ("scale", "clicks", "--servers", "3"),
        ("scale", "clicks", "--trainers", "3"),
        ("delete", "clicks", "--with-state"),
    ],
)
def test_without_a_cluster_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: clicks}}"
    (tmp_path / "k8s" / "base").mkdir(parents=True)
    (tmp_path / "k8s" / "base" / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    (tmp_path / "k8s" / "base" / "job.yaml").write_text(config)
    server = f"{{server: 'https://127.0.0.1:{hold_port()}'}}"
    (tmp_path / "config").write_text(
        f"{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {server}}}], "
        "users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["k8s", *words]) == 69
    call, line = capfd.readouterr().err.splitlines()
    assert call.startswith("+ kubectl ")
    assert line.startswith("pslib: kubectl reaches no cluster: ")
    assert line.endswith("; see kubectl cluster-info, and kubectl config get-contexts")


def test_a_number_is_needed_to_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "k8s", "scale", "clicks") == [
        "expected --servers N, --trainers N or --scorers N; see pslib k8s scale --help"
    ]
