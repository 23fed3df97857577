"""Who may know what, where import-linter cannot see: import cost, the environment, the native module, core's purity."""

import ast
import json
import subprocess
import sys
import tomllib

from tests.layout.project import PACKAGE, ROOT, modules, source_files, tree

PLAN_SIDE = {f"octavo.core.{name}" for name in ("plan", "ports", "types", "sampling", "structured", "parameter")}
"""What a plan is made of; the last two are parts of `sampling`."""
HEAVY = {"numpy", "pydantic", "starlette", "uvicorn", "tokenizers", "jinja2", "rich", "huggingface_hub", "llguidance"}
ENVIRONMENT = {"environ", "environb", "getenv", "putenv"}


def modules_after(*statements: str) -> set[str]:
    """Top-level and dotted names in `sys.modules` of a fresh interpreter after `statements`."""
    script = "; ".join(("import sys, json", *statements, "print(json.dumps(sorted(sys.modules)))"))
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return set(json.loads(output))


def test_importing_octavo_is_light() -> None:
    loaded = modules_after("import octavo")
    assert not loaded & HEAVY
    assert not loaded & {"asyncio", "octavo.core.sampling", "octavo.boot"}


def test_sampling_params_cost_the_core_only() -> None:
    assert not modules_after("from octavo import SamplingParams") & HEAVY


def test_core_is_the_standard_library_only() -> None:
    names = [name for name in modules() if name.startswith("octavo.core")]
    before = modules_after()
    loaded = modules_after(*(f"import {name}" for name in names)) - before
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names | {"octavo"}}
    assert not foreign
    assert {name for name in loaded if name.startswith("octavo.")} == set(names)


def test_the_backends_contract_lists_all_of_core_but_the_plan_side() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    forbidden = next(c for c in contracts if c["id"] == "backends-see-plans")["forbidden_modules"]
    core = {name for name in modules() if name.startswith("octavo.core.")}
    assert set(forbidden) == core - PLAN_SIDE


def test_only_config_reads_the_environment() -> None:
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in source_files(".py", under=PACKAGE)
        for node in ast.walk(tree(path))
        if ENVIRONMENT & (_imported_names(node) | ({node.attr} if isinstance(node, ast.Attribute) else set()))
    }
    assert {name for name in readers if not name.startswith("config/")} == set()


def test_only_the_cpu_backend_knows_the_native_module() -> None:
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in source_files(".py", under=PACKAGE)
        for node in ast.walk(tree(path))
        if "_native" in _imported_names(node)
    }
    assert {name for name in importers if not name.startswith("backends/cpu/")} == set()


def test_the_stub_of_the_native_module_names_what_is_in_it() -> None:
    from octavo.backends.cpu import _native

    stub = ast.parse((PACKAGE / "backends" / "cpu" / "_native.pyi").read_text(encoding="utf-8"))
    declared = {node.name for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert declared == {name for name in dir(_native) if not name.startswith("__")}


def _imported_names(node: ast.AST) -> set[str]:
    """The last parts of all names that an import statement brings in or goes through."""
    if isinstance(node, ast.Import):
        return {part for alias in node.names for part in alias.name.split(".")}
    if isinstance(node, ast.ImportFrom):
        return {alias.name for alias in node.names} | set((node.module or "").split("."))
    return set()
