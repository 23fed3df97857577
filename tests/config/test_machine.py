"""CPUs and memory from trees of kernel files, as containers show them."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config.machine import available_memory_bytes, readable_bytes, resident_bytes, usable_cpus

GIB = 2**30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   16777216 kB\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def v2(group: str, **files: str) -> dict[str, str]:
    """A cgroup v2 tree in which our group has `files` (`cpu_max` is cpu.max)."""
    named = {f"sys/fs/cgroup{group}/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    return {"proc/self/cgroup": f"0::{group or '/'}\n", "proc/meminfo": MEMINFO, **named}


@pytest.mark.parametrize(
    ("files", "cpus", "reason"),
    [
        ({}, 8, "CPU affinity allows 8"),
        (v2("", cpu_max="max 100000\n"), 8, "CPU affinity allows 8"),
        (v2("", cpu_max="200000 100000\n"), 2, "the cgroup quota is 2 CPUs (affinity allows 8)"),
        (v2("/pod/c", cpu_max="250000 100000\n"), 2, "the cgroup quota is 2.5 CPUs (affinity allows 8)"),
        (v2("", cpu_max="50000 100000\n"), 1, "the cgroup quota is 0.5 CPUs (affinity allows 8)"),
        (v2("", cpu_max="6400000 100000\n"), 8, "CPU affinity allows 8"),
        (v2("", cpu_max="odd\n"), 8, "CPU affinity allows 8"),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",  # a container sees its own group as the root
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
            "the cgroup quota is 3 CPUs (affinity allows 8)",
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
            "CPU affinity allows 8",
        ),
    ],
)
def test_usable_cpus(tmp_path: Path, files: dict[str, str], cpus: int, reason: str) -> None:
    assert usable_cpus(plant(tmp_path, files), affinity=8) == (cpus, reason)


def test_a_limit_of_a_group_above_holds_too(tmp_path: Path) -> None:
    files = v2("/slice/pod/c", cpu_max="400000 100000") | {"sys/fs/cgroup/slice/cpu.max": "100000 100000"}
    assert usable_cpus(plant(tmp_path, files), affinity=8)[0] == 1


def test_this_machine_gives_at_least_one_cpu_and_some_memory() -> None:
    assert usable_cpus()[0] >= 1
    assert available_memory_bytes()[0] > 0


@pytest.mark.parametrize(
    ("files", "expected", "reason"),
    [
        ({"proc/meminfo": MEMINFO}, 16 * GIB, "MemAvailable is 16.00 GiB"),
        ({"proc/meminfo": "MemFree: 1048576 kB\n"}, GIB, "MemAvailable is 1.00 GiB"),
        (v2("", memory_max="max", memory_current="5"), 16 * GIB, "MemAvailable is 16.00 GiB"),
        (
            v2("", memory_max=f"{4 * GIB}", memory_current=f"{GIB}"),
            3 * GIB,
            "the cgroup memory limit leaves 3.00 GiB (MemAvailable is 16.00 GiB)",
        ),
        (
            v2(
                "/c",
                memory_max=f"{4 * GIB}",
                memory_current=f"{3 * GIB}",
                memory_stat=f"anon 5\ninactive_file {2 * GIB}",
            ),
            3 * GIB,
            "the cgroup memory limit leaves 3.00 GiB (MemAvailable is 16.00 GiB)",
        ),
        (
            v2("", memory_max=f"{GIB}", memory_current=f"{2 * GIB}"),
            0,
            "the cgroup memory limit leaves 0 bytes (MemAvailable is 16.00 GiB)",
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a/b\n",
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {GIB // 2}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            },
            3 * GIB // 2,
            "the cgroup memory limit leaves 1.50 GiB (MemAvailable is 16.00 GiB)",
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int, reason: str) -> None:
    assert available_memory_bytes(plant(tmp_path, files)) == (expected, reason)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("0123456789max -\n:/,cpu", max_size=30), st.text("0123456789max -\n", max_size=20))
def test_odd_kernel_files_never_raise(tmp_path: Path, groups: str, limit: str) -> None:
    files = {"proc/self/cgroup": f"{groups}\n0::/\n", "proc/meminfo": limit, "sys/fs/cgroup/cpu.max": limit}
    root = plant(tmp_path, files | {"sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/memory.current": limit})
    assert 1 <= usable_cpus(root, affinity=4)[0] <= 4
    assert available_memory_bytes(root)[0] >= 0


@given(st.integers(1, 2**50))
def test_a_size_never_reads_as_nothing_and_is_right_to_its_last_digit(size: int) -> None:
    number, unit = readable_bytes(size).replace(",", "").split()
    scale = {"GiB": GIB, "MiB": 2**20, "bytes": 1}[unit]
    assert float(number) > 0
    assert abs(float(number) * scale - size) <= (0 if scale == 1 else 0.0050001 * scale)


def test_the_memory_of_a_process_is_told_or_unknown() -> None:
    mine = resident_bytes(os.getpid())
    assert mine is not None and 2**20 < mine < 2**40
    assert resident_bytes(0) is None
