"""The memory of the machine: control groups of both kinds as the kernel shows them, and limits of address space."""

import resource
from pathlib import Path

import psutil
import pytest

from asynctile.storage import limits

MIB = 1 << 20
UNLIMITED = "9223372036854771712"


@pytest.fixture
def machine(tmp_path):
    """Return a function that sets up a process in groups: its lines of /proc/self/cgroup, its mounts and its groups' files."""

    def make(groups, mounts, files):
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self/cgroup").write_text("".join(line + "\n" for line in groups))
        lines = []
        for place, root, kind, options in mounts:
            mount = str(tmp_path / place).replace(" ", "\\040")
            lines.append(f"35 31 0:32 {root} {mount} rw,relatime shared:9 - {kind} none {options}\n")
        (proc / "self/mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "".join(lines))
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text if isinstance(text, str) else f"{text}\n")
        return proc

    return make


def groups_of(proc):
    return {limit.what: (limit.nbytes, limit.left) for limit in limits.found(proc) if "cgroup" in limit.what}


def test_a_unified_group_allows_its_limit_minus_its_use_without_the_file_cache(machine):
    proc = machine(["0::/job"], [("fs", "/", "cgroup2", "rw")], {
        "fs/job/memory.max": 500 * MIB, "fs/job/memory.high": "max\n", "fs/job/memory.current": 300 * MIB,
        "fs/job/memory.stat": f"anon 1\ninactive_file {80 * MIB}\nactive_file {20 * MIB}\n",
    })  # fmt: skip
    assert groups_of(proc) == {"memory cgroup /job": (500 * MIB, 300 * MIB)}


def test_every_ancestor_counts_with_the_use_of_all_groups_below_it(machine):
    proc = machine(["0::/a/b/c"], [("fs", "/", "cgroup2", "rw")], {
        "fs/a/memory.max": "max\n", "fs/a/memory.high": 900 * MIB, "fs/a/memory.current": 890 * MIB, "fs/a/memory.stat": "",
        "fs/a/b/memory.max": 500 * MIB, "fs/a/b/memory.current": 100 * MIB, "fs/a/b/memory.stat": "",
        "fs/a/b/c/memory.max": "max\n", "fs/a/b/c/memory.current": 50 * MIB, "fs/a/b/c/memory.stat": "",
    })  # fmt: skip
    assert groups_of(proc) == {"memory cgroup /a/b": (500 * MIB, 400 * MIB), "memory cgroup /a": (900 * MIB, 10 * MIB)}
    assert limits.tightest(proc).what == "memory cgroup /a"


def test_a_group_of_the_older_kind_counts_ancestors_that_are_not_mounted(machine):
    stat = f"inactive_file 5\ntotal_inactive_file {30 * MIB}\ntotal_active_file 0\nhierarchical_memory_limit {200 * MIB}\n"
    proc = machine(["8:pids:/x", "4:memory:/docker/1"], [("fs/pids", "/", "cgroup", "rw,pids"),
                                                         ("fs/memory", "/docker/1", "cgroup", "rw,memory")], {
        "fs/memory/memory.limit_in_bytes": UNLIMITED, "fs/memory/memory.usage_in_bytes": 130 * MIB,
        "fs/memory/memory.stat": stat,
    })  # fmt: skip
    assert groups_of(proc) == {"memory cgroup /docker/1": (200 * MIB, 100 * MIB)}


def test_both_kinds_at_once_and_a_mount_with_a_blank_in_its_name(machine):
    proc = machine(["4:cpu,memory:/a", "0::/b"], [("my groups/memory", "/", "cgroup", "rw,cpu,memory"),
                                                  ("unified", "/", "cgroup2", "rw,nsdelegate")], {
        "my groups/memory/a/memory.limit_in_bytes": 400 * MIB, "my groups/memory/a/memory.usage_in_bytes": 500 * MIB,
        "unified/b/memory.max": 300 * MIB, "unified/b/memory.current": MIB,
    })  # fmt: skip
    assert groups_of(proc) == {"memory cgroup /a": (400 * MIB, 0), "memory cgroup /b": (300 * MIB, 299 * MIB)}


@pytest.mark.parametrize("path", ["/../../elsewhere", "/not/below", "/"])
def test_a_path_of_another_namespace_is_taken_for_the_mounted_group(machine, path):
    proc = machine([f"0::{path}"], [("fs", "/docker/1" if path != "/" else "/", "cgroup2", "rw")], {
        "fs/memory.max": 64 * MIB, "fs/memory.current": MIB, "fs/memory.stat": "",
    })  # fmt: skip
    assert list(groups_of(proc).values()) == [(64 * MIB, 63 * MIB)]


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (["0::/a"], {}),
        (["0::/a"], {"fs/a/memory.max": "max\n", "fs/a/memory.current": "7\n"}),
        (["", "nonsense", "0:"], {"fs/a/memory.max": "1\n", "fs/a/memory.current": "0\n"}),
        (["0::/a"], {"fs/a/memory.max": "", "fs/a/memory.current": "what\n", "fs/a/memory.stat": "anon\n\nfile x\n"}),
    ],
)
def test_a_machine_without_limits_has_its_ram(machine, groups, files):
    proc = machine(groups, [("fs", "/", "cgroup2", "rw")], files)
    assert limits.tightest(proc).is_of_machine
    assert limits.tightest(proc).nbytes == psutil.virtual_memory().total


def test_unreadable_files_mean_no_limit():
    assert limits.tightest(Path("/nowhere")).is_of_machine


@pytest.mark.parametrize(("name", "what"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_a_limit_of_address_space_leaves_what_is_not_mapped_yet(name, what, monkeypatch, tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tpython\nVmSize:\t  204800 kB\nVmData:\t  204800 kB\nThreads:\t1\n")
    only = getattr(resource, name)
    monkeypatch.setattr(resource, "getrlimit", lambda one: (1000 * MIB, -1) if one == only else (resource.RLIM_INFINITY, -1))
    (limit,) = limits.address_space(tmp_path)
    assert (limit.what, limit.nbytes, limit.left, limit.share) == (what, 1000 * MIB, 800 * MIB, (800 - 128) * MIB * 4 // 5)
    assert limit.remedy == (
        f"{what} of 1000.00 MiB leaves 800.00 MiB; without host_memory, tiles get four fifths of that after 128.00 MiB are set "
        "aside: raise that limit"
    )
