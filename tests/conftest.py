"""What all tests share: how hard properties are tried, the default model, and the rule that nothing skips in CI."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.turns import turn

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def _register(name: str, examples: int, *, derandomize: bool = False) -> None:
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,  # a test must not depend on how busy the machine is
        print_blob=True,
        derandomize=derandomize,
        suppress_health_check=[HealthCheck.too_slow],
    )


_register("fast", 30)
_register("ci", 150, derandomize=True)
_register("slow", 2000)
settings.load_profile("ci" if IN_CI else "fast")  # --hypothesis-profile overrides


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF file: downloaded once, then read from the user's cache. OCTAVO_TEST_MODEL overrides."""
    override = os.environ.get("OCTAVO_TEST_MODEL")
    if override:
        return Path(override)
    from octavo.loaders.hub import default_model_path

    return Path(default_model_path())


def pytest_collection_finish() -> None:
    _keep()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _keep()  # what is measured in this process (`heap.settled`) thaws what was kept, and each file leaves more


def _keep() -> None:
    """What is there stays: looking through ten thousand tests for garbage, again and again, would be part of each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """First of all: the time in which a test waits for its turn is not part of its own."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    shared = Path(item.config.option.basetemp).parent  # by the workers of a run
    with turn(shared, alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("skipped", []) if IN_CI else []:
        terminalreporter.write_line(f"skipped, which CI does not allow: {report.nodeid}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failed run: what is not run is not known to work."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if IN_CI and reporter is not None and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
