"""The machine and the versions that a section ran with, in words."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from bench.report.installed import versions
from octavo import __version__
from octavo.backends.cpu.isa import choose
from octavo.config.machine import available_memory_bytes, usable_cpus


def machine(peers: Path | None = None) -> dict[str, str]:
    """What a reader needs to know to compare. No names of hosts or people."""
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": f"{_processor()}, {usable_cpus()[0]} threads used",
        "memory": f"{available_memory_bytes()[0] / 2**30:.0f} GiB free",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "octavo": f"{__version__}, {choose(None)[0]}",
        "Python": platform.python_version(),
        **({} if peers is None else versions(peers)),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
