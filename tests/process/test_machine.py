"""Cores and memory of a process: what control groups leave of the machine's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslib.process.machine import (
    PROC,
    V2,
    control_groups,
    cores,
    cpu_quota,
    memory_bytes,
    memory_limit,
    oom_kills,
    physical_bytes,
    quota_words,
)

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
V1_NO_LIMIT = (1 << 63) - 4096


@pytest.fixture(autouse=True)
def sixty_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("pslib.process.machine.physical_bytes", lambda: 256 * GIB)


class Kernel:
    """A ``/proc`` and trees of groups in a folder, as kernels show them."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys fs"
        (self.proc / "self").mkdir(parents=True)
        self._mounts = [
            "22 27 0:21 / /proc rw,relatime - proc proc rw",
            "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,cpu,memory",
        ]
        self._groups: list[str] = []

    def group(self, line: str) -> None:
        """A line of ``/proc/self/cgroup``."""
        self._groups.append(line)
        (self.proc / "self" / "cgroup").write_text("".join(f"{one}\n" for one in self._groups))

    def mount(self, kind: str, root: str, point: str, options: str = "") -> None:
        """A line of ``/proc/self/mountinfo``."""
        escaped = str(self.sys / point).replace(" ", "\\040")
        words = f"rw,nosuid shared:9 master:3 - {kind} {kind} rw,{options}"
        self._mounts.append(f"{31 + len(self._mounts)} 24 0:28 {root} {escaped} {words}")
        (self.proc / "self" / "mountinfo").write_text("".join(f"{one}\n" for one in self._mounts))

    def write(self, **files: str) -> None:
        """``a__cpu_max="..."`` is the file ``cpu.max`` of the folder ``a``."""
        for name, text in files.items():
            *folders, last = name.split("__")
            file = self.sys.joinpath(*folders, last.replace("_", ".", 1))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    def cores(self) -> int:
        return cores(self.proc)


@pytest.fixture
def v2(tmp_path: Path) -> Kernel:
    """cgroup v2 on a machine, without a container: this process is in ``/pod/box``."""
    kernel = Kernel(tmp_path)
    kernel.group("0::/pod/box")
    kernel.mount("cgroup2", "/", ".", "nsdelegate,memory_recursiveprot")
    return kernel


@pytest.fixture
def v1(tmp_path: Path) -> Kernel:
    """cgroup v1, with a tree for the CPU and one for memory."""
    kernel = Kernel(tmp_path)
    kernel.group("9:name=systemd:/elsewhere")
    kernel.group("4:memory:/pod/box")
    kernel.group("2:cpu,cpuacct:/pod/box")
    kernel.group("1:cpuset:/elsewhere")
    kernel.mount("cgroup", "/", "cpuset", "cpuset")
    kernel.mount("cgroup", "/", "cpu,cpuacct", "cpu,cpuacct")
    kernel.mount("cgroup", "/", "memory", "memory")
    return kernel


# --- cores ---


def test_without_a_quota_all_cores_that_a_process_may_run_on_are_its(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="max 100000")
    assert (v2.cores(), cpu_quota(v2.proc), quota_words(v2.proc)) == (64, None, "")


def test_a_quota_leaves_as_many_cores_as_it_pays_for(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="400000 100000")
    assert v2.cores() == 4
    v2.write(pod__box__cpu_max="200000 50000")
    assert v2.cores() == 4


@pytest.mark.parametrize(("quota", "left"), [(150_000, 1), (199_999, 1), (20_000, 1), (390_000, 3)])
def test_a_part_of_a_core_is_left_to_others_and_one_core_there_always_is(
    quota: int, left: int, v2: Kernel
) -> None:
    v2.write(pod__box__cpu_max=f"{quota} 100000")
    assert v2.cores() == left


def test_the_tightest_quota_on_the_way_to_the_root_counts(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="800000 100000", pod__cpu_max="200000 100000", other__cpu_max="100000 100000")
    assert v2.cores() == 2
    v2.write(pod__box__cpu_max="max 100000")
    assert v2.cores() == 2
    v2.write(cpu_max="100000 100000")
    assert v2.cores() == 1


def test_a_quota_beyond_the_cores_that_a_process_may_run_on_adds_none(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="9900000 100000")
    assert (v2.cores(), quota_words(v2.proc)) == (64, "")
    v2.write(pod__box__cpu_max="6400000 100000")
    assert quota_words(v2.proc) == ""


def test_a_line_on_cores_can_say_that_a_quota_is_why(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="150000 100000")
    assert quota_words(v2.proc) == " (a CPU quota allows 1.5 of 64 cores)"


def test_cgroup_v1_has_quota_and_period_in_two_files_and_minus_one_for_none(v1: Kernel) -> None:
    v1.write(
        **{"cpu,cpuacct__pod__box__cpu_cfs_quota_us": "-1", "cpu,cpuacct__pod__cpu_cfs_quota_us": "250000"}
    )
    v1.write(**{"cpu,cpuacct__pod__box__cpu_cfs_period_us": "100000"})
    assert v1.cores() == 64
    v1.write(**{"cpu,cpuacct__pod__cpu_cfs_period_us": "50000"})
    assert v1.cores() == 5
    v1.write(**{"cpu,cpuacct__pod__box__cpu_cfs_quota_us": "300000"})
    assert v1.cores() == 3


def test_where_both_versions_are_mounted_the_tighter_quota_counts(v1: Kernel) -> None:
    v1.group("0::/pod/box")
    v1.mount("cgroup2", "/", "unified")
    v1.write(unified__pod__box__cpu_max="200000 100000")
    v1.write(**{"cpu,cpuacct__cpu_cfs_quota_us": "300000", "cpu,cpuacct__cpu_cfs_period_us": "100000"})
    assert v1.cores() == 2
    v1.write(unified__pod__box__cpu_max="400000 100000")
    assert v1.cores() == 3


# --- where a process's own group is ---


def test_a_container_with_names_of_its_own_sees_its_group_as_the_root(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.group("0::/")
    kernel.mount("cgroup2", "/", ".")
    kernel.write(cpu_max="200000 100000")
    assert (kernel.cores(), control_groups(V2, kernel.proc)) == (2, [kernel.sys])


@pytest.mark.parametrize(
    ("group", "roots", "folders"),
    [
        ("0::/", {"here": "/docker/8f3c", "there": "/docker/8f3c"}, ["here"]),
        ("0::/", {"here": "/../..", "there": "/../.."}, ["here"]),
        ("0::/pod", {"other": "/other", "all": "/"}, ["all/pod", "all"]),
        ("0::/cri:8f:/3c", {".": "/"}, ["cri:8f:/3c", "cri:8f:", "."]),
    ],
    ids=["not below the mount", "above the mount", "one of two mounts shows it", "a colon in its name"],
)
def test_a_group_is_looked_for_below_the_mount_that_shows_it(
    tmp_path: Path, group: str, roots: dict[str, str], folders: list[str]
) -> None:
    kernel = Kernel(tmp_path)
    kernel.group(group)
    for place, root in roots.items():
        kernel.mount("cgroup2", root, place)
    assert control_groups(V2, kernel.proc) == [kernel.sys / folder for folder in folders]


def test_a_container_without_names_of_its_own_is_shown_the_folder_of_its_group_alone(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.group("4:memory:/docker/8f3c/inner")
    kernel.mount("cgroup", "/docker/8f3c", "memory", "memory")
    assert control_groups("memory", kernel.proc) == [kernel.sys / "memory/inner", kernel.sys / "memory"]


def test_a_process_that_was_moved_out_of_what_its_container_shows_has_no_known_limits(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.group("0::/../other")
    kernel.mount("cgroup2", "/", "here")
    kernel.write(here__cpu_max="100000 100000", other__cpu_max="100000 100000")
    assert kernel.cores() == 64


def test_a_controller_of_cgroup_v1_is_looked_for_by_its_whole_name(v1: Kernel) -> None:
    tree = v1.sys / "cpu,cpuacct"
    assert control_groups("cpu", v1.proc) == [tree / "pod/box", tree / "pod", tree]


# --- memory ---


def test_memory_is_the_machines_or_what_the_tightest_limit_leaves(v2: Kernel) -> None:
    assert (memory_bytes(v2.proc), memory_limit(v2.proc)) == (256 * GIB, None)
    v2.write(pod__box__memory_max="max", pod__memory_max=str(4 * GIB), memory_max=str(8 * GIB))
    assert (memory_bytes(v2.proc), memory_limit(v2.proc)) == (4 * GIB, 4 * GIB)
    v2.write(pod__memory_max=str(512 * GIB), memory_max="max")
    assert memory_bytes(v2.proc) == 256 * GIB


def test_no_limit_of_cgroup_v1_is_a_number_beyond_any_machine(v1: Kernel) -> None:
    v1.write(memory__pod__box__memory_limit_in_bytes=str(V1_NO_LIMIT))
    assert memory_bytes(v1.proc) == 256 * GIB
    v1.write(memory__pod__memory_limit_in_bytes=str(2 * GIB))
    assert memory_bytes(v1.proc) == 2 * GIB


# --- processes that the kernel has killed ---


def test_kills_for_want_of_memory_are_those_of_the_nearest_group_that_counts_them(v2: Kernel) -> None:
    (v2.proc / "vmstat").write_text("pgfault 12\nno_oom_kill 8\noom_kill 9\nnuma_hit 1\n")
    assert oom_kills(v2.proc) == 9
    v2.write(pod__memory_events="low 0\nhigh 0\nmax 7\noom 8\noom_kill 3\noom_group_kill 5")
    assert oom_kills(v2.proc) == 3
    v2.write(pod__box__memory_events="oom 4\noom_kill 0\noom_group_kill 6")
    assert oom_kills(v2.proc) == 0


def test_cgroup_v1_counts_kills_in_a_file_of_other_things(v1: Kernel) -> None:
    (v1.proc / "vmstat").write_text("oom_kill 9\n")
    v1.write(memory__pod__box__memory_oom_control="oom_kill_disable 0\nunder_oom 0")  # before Linux 4.13
    assert oom_kills(v1.proc) == 9
    v1.write(memory__pod__box__memory_oom_control="oom_kill_disable 1\nunder_oom 1\noom_kill 2")
    assert oom_kills(v1.proc) == 2


# --- what can't be read ---


def test_what_is_not_there_is_no_limit(tmp_path: Path) -> None:
    assert (cores(tmp_path), memory_bytes(tmp_path), oom_kills(tmp_path)) == (64, 256 * GIB, 0)
    kernel = Kernel(tmp_path)
    kernel.group("0::/")
    assert kernel.cores() == 64
    kernel.mount("cgroup2", "/", "absent")
    assert (kernel.cores(), memory_bytes(kernel.proc), oom_kills(kernel.proc)) == (64, 256 * GIB, 0)


@pytest.mark.parametrize(
    "text",
    ["", "max", "many 100000", "100000", "100000 0", "0 100000", "-1 100000", "\u0663\u00b2 1", "\x00"],
)
def test_what_is_no_quota_and_no_limit_is_none(text: str, v2: Kernel) -> None:
    v2.write(pod__box__cpu_max=text, pod__box__memory_max=f"x{text}")
    assert (v2.cores(), memory_bytes(v2.proc)) == (64, 256 * GIB)


def test_a_folder_in_place_of_a_file_bytes_that_are_no_text_and_half_lines_end_nothing(v2: Kernel) -> None:
    (v2.sys / "pod/box/cpu.max").mkdir(parents=True)
    (v2.sys / "pod/box/memory.max").write_bytes(b"\xff\xfe")
    with (v2.proc / "self/mountinfo").open("ab") as file:
        file.write(b"\n-\n - cgroup2\n1 2 3 - cgroup2 a rw\n1 2 3 / /\xff rw - cgroup2 a rw\n")
    with (v2.proc / "self/cgroup").open("ab") as file:
        file.write(b"\n:\n0\n0::\nx::/y\n")
    assert (v2.cores(), memory_bytes(v2.proc)) == (64, 256 * GIB)


def test_a_number_of_more_digits_than_python_reads_is_no_limit(v2: Kernel) -> None:
    digits = "9" * 5000
    v2.write(pod__box__cpu_max=f"{digits} 100000", pod__box__memory_max=digits)
    v2.write(pod__box__memory_events=f"oom_kill {digits}")
    assert (v2.cores(), memory_bytes(v2.proc), oom_kills(v2.proc)) == (64, 256 * GIB, 0)


def test_a_quota_beyond_all_fractions_is_none(v2: Kernel) -> None:
    v2.write(pod__box__cpu_max="9" * 400 + " 1")
    assert (v2.cores(), quota_words(v2.proc)) == (64, "")


def test_a_mount_whose_name_no_file_can_have_ends_nothing(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.group("0::/")
    kernel.mount("cgroup2", "/", "no\\000name")
    assert (kernel.cores(), memory_bytes(kernel.proc), oom_kills(kernel.proc)) == (64, 256 * GIB, 0)


# --- this machine's own kernel ---


def test_this_process_has_a_core_and_memory_at_least_and_no_more_than_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert 1 <= cores() <= len(os.sched_getaffinity(0))
    assert 0 < memory_bytes() <= physical_bytes()
    assert oom_kills() >= 0


def test_this_process_is_in_the_group_where_it_is_looked_for() -> None:
    for controller in (V2, "cpu", "memory"):
        for group in control_groups(controller)[:1]:
            own = (group / "cgroup.procs").read_text().split()
            assert str(os.getpid()) in own


@pytest.fixture
def own_group() -> Iterator[Path]:
    """A new group two levels below the root of cgroup v2."""
    roots = control_groups(V2, PROC)[-1:]
    if os.geteuid() != 0 or not roots or not os.access(roots[0], os.W_OK):
        pytest.skip(
            "only root may make control groups, and only where cgroup v2 is mounted for writing; how groups "
            "are found is shown everywhere, in made-up files, by "
            "test_a_container_with_names_of_its_own_sees_its_group_as_the_root"
        )
    outer = roots[0] / f"pslib-test-{os.getpid()}"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    yield inner
    inner.rmdir()
    outer.rmdir()


def said_in(group: Path, script: str) -> list[str]:
    """Return the output of a Python in that group."""
    begin = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    command = [sys.executable, "-c", f"{begin}from pslib.process.machine import *\n{script}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_a_process_finds_the_group_that_it_was_put_into_and_those_above(own_group: Path) -> None:
    found = said_in(own_group, "print(*control_groups(''))")
    assert found[:3] == [str(own_group), str(own_group.parent), str(own_group.parent.parent)]


def test_a_process_in_a_group_with_a_quota_and_a_limit_gets_what_they_leave(own_group: Path) -> None:
    outer = own_group.parent
    try:
        (outer / "cpu.max").write_text("150000 100000")
        (outer / "memory.max").write_text(str(1 << 30))
    except OSError:
        pytest.skip(
            "this kernel has no controllers of CPU and memory in cgroup v2, which so takes no limits; what "
            "limits leave is shown everywhere by test_the_tightest_quota_on_the_way_to_the_root_counts"
        )
    said = said_in(own_group, "print(cores(), cpu_quota(), memory_bytes(), oom_kills())")
    assert said == ["1", "1.5", str(min(1 << 30, physical_bytes())), "0"]
