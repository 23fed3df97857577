"""The type stub of the native module names what the module has, with the same parameters."""

import ast
import re
from pathlib import Path

from octavo.backends.cpu import _native
from octavo.backends.cpu import isa as neighbour

STUB = Path(neighbour.__file__).with_name("_native.pyi")


def parameters(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in node.args.args if argument.arg != "self"]


def native_parameters(function: object) -> list[str]:
    signature = function.__nb_signature__[0][0]  # type: ignore[attr-defined]
    inside = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\\\d+", "", signature)))
    return [name for name in re.findall(r"[(,]\s*(\w+)(?=[:,)])", inside) if name != "self"]


def test_stub_and_module_have_the_same_names_and_parameters():
    tree = ast.parse(STUB.read_text())
    functions = {node.name: parameters(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {name for name in vars(_native) if not name.startswith("_")}
    assert found == set(functions) | set(classes)
    for name, expected in functions.items():
        assert native_parameters(getattr(_native, name)) == expected, name
    for name, node in classes.items():
        for method in (item for item in node.body if isinstance(item, ast.FunctionDef)):
            if not method.decorator_list:
                assert native_parameters(getattr(getattr(_native, name), method.name)) == parameters(method), name
