"""What this machine lets us use: CPUs and memory, with the reason for each number. Linux cgroups v1 and v2.

`root` stands in for `/` in tests. A file that is missing or odd sets no limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = Path("/")
_CPU_MOUNTS = ("cpu,cpuacct", "cpuacct,cpu", "cpu")


def usable_cpus(root: Path = _SYSTEM, affinity: int | None = None) -> tuple[int, str]:
    """How many CPUs this process may keep busy, and why: the smaller of affinity and cgroup quota, at least 1.

    A quota of 2.5 CPUs gives 2: a third thread would be throttled and stall every step.
    """
    allowed = affinity if affinity is not None else _affinity()
    quota = min(_quotas(root), default=None)
    if quota is None or quota >= allowed:
        return allowed, f"CPU affinity allows {allowed}"
    return max(1, int(quota)), f"the cgroup quota is {quota:g} CPUs (affinity allows {allowed})"


def available_memory_bytes(root: Path = _SYSTEM) -> tuple[int, str]:
    """How many bytes this process may still take, and why: the smaller of MemAvailable and what the cgroup has left."""
    free = _mem_available(root)
    left = min(_cgroup_memory_left(root), default=None)
    if left is None or left >= free:
        return free, f"MemAvailable is {readable_bytes(free)}"
    return left, f"the cgroup memory limit leaves {readable_bytes(left)} (MemAvailable is {readable_bytes(free)})"


def readable_bytes(num_bytes: int) -> str:
    """Bytes for people, in the largest unit that leaves something of them: `1.50 GiB`, `0.02 MiB`, `640 bytes`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(num_bytes) >= size / 100:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:,} bytes"


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    """A count from a kernel file; None for `max`, -1, and what is no number."""
    return int(text) if text.isdecimal() else None


def _groups(root: Path, controllers: set[str]) -> Iterator[str]:
    """Our cgroup's path in the hierarchy that has one of `controllers` (v1), or in the only one ("": v2)."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not names and not controllers:
            yield path
        if controllers & set(names.split(",")):
            yield path


def _folders(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and all above it, up to the mount: each may set a limit. Those not visible do not exist."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _quotas(root: Path) -> Iterator[float]:
    """CPU limits, in CPUs."""
    mount = root / "sys/fs/cgroup"
    for group in _groups(root, set()):
        for folder in _folders(mount, group):
            quota, period = [*_read(folder / "cpu.max").split(), "", ""][:2]
            yield from _share(_number(quota), _number(period))
    for group in _groups(root, {"cpu"}):
        for folder in (folder for name in _CPU_MOUNTS for folder in _folders(mount / name, group)):
            quota, period = (_number(_read(folder / f"cpu.cfs_{what}_us")) for what in ("quota", "period"))
            yield from _share(quota, period)


def _share(quota: int | None, period: int | None) -> Iterator[float]:
    if quota and period:
        yield quota / period


def _mem_available(root: Path) -> int:
    """From /proc/meminfo; where there is none, the system's page count."""
    rows = (line.split() for line in _read(root / "proc/meminfo").splitlines())
    sizes = {row[0]: int(row[1]) * 1024 for row in rows if len(row) >= 2 and row[1].isdecimal()}
    for name in ("MemAvailable:", "MemFree:"):
        if name in sizes:
            return sizes[name]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_memory_left(root: Path) -> Iterator[int]:
    """Limit minus use, where page cache that can be dropped does not count as use."""
    mount = root / "sys/fs/cgroup"
    for group in _groups(root, set()):
        for folder in _folders(mount, group):
            yield from _left(folder, "memory.max", "memory.current", "inactive_file")
    for group in _groups(root, {"memory"}):
        for folder in _folders(mount / "memory", group):
            yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(folder: Path, limit_file: str, use_file: str, cache_name: str) -> Iterator[int]:
    limit, use = _number(_read(folder / limit_file)), _number(_read(folder / use_file))
    if limit is None or use is None:
        return
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    droppable = next((int(row[1]) for row in rows if len(row) == 2 and row[0] == cache_name), 0)
    yield max(0, limit - max(0, use - droppable))


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in use; None where that cannot be read."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
