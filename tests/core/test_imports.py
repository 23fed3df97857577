"""The core is pure: any of its modules, alone in a fresh process, loads the standard library and nothing else."""

import pkgutil
import subprocess
import sys

import pytest

import octavo.core

MODULES = sorted(f"octavo.core.{module.name}" for module in pkgutil.iter_modules(octavo.core.__path__))

PROBE = """
import sys
before = set(sys.modules)
import {module}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - set(sys.stdlib_module_names) - {{"octavo"}}))
print(*sorted(name for name in sys.modules if name.startswith("octavo.") and not name.startswith("octavo.core")))
print(*sorted({{"asyncio", "threading", "socket", "logging", "subprocess"}} & loaded))
"""


@pytest.mark.parametrize("module", MODULES)
def test_a_core_module_loads_the_standard_library_only(module: str) -> None:
    probe = [sys.executable, "-c", PROBE.format(module=module)]
    foreign, rooms, heavy = subprocess.run(probe, capture_output=True, text=True, check=True).stdout.split("\n")[:3]
    assert foreign == "", "no third-party package"
    assert rooms == "", "no other room of this package"
    assert heavy == "", "no clock, I/O, threads or logging"


def test_every_module_is_probed() -> None:
    assert {"octavo.core.scheduler", "octavo.core.lease", "octavo.core.audit"} <= set(MODULES)
