"""docs/map.md, made from the modules' own first sentences. `python -m tests.layout.map` prints it."""

import ast
from pathlib import Path

from tests.layout.project import modules, tree

HEADER = """\
# The map

One sentence for each module: the first of its docstring, so change it there and run `make docs`. Rooms are in the order
in which imports go: down only, and never between neighbours (`pyproject.toml` has the rows). [Kernels](kernels.md)
explains `native/`.
"""

ROOMS = {
    "": ("The top", "Where everything is put together; the only place that knows all the rooms."),
    "tools": ("tools", "What the commands of `octavo` do."),
    "server": ("server", "Protocols at the edge. Holds an EngineClient, never a backend."),
    "server.openai": (
        "server.openai",
        "OpenAI's endpoints, with vLLM's fields; and what all endpoints that generate share.",
    ),
    "server.anthropic": ("server.anthropic", "Anthropic's Messages, over the same chat."),
    "cluster": ("cluster", "Many replicas."),
    "ui": ("ui", "The live page."),
    "control": ("control", "Who may enter."),
    "engine": ("engine", "One replica's imperative shell: the loop, its processes, its clients."),
    "backends": ("backends", "A StepPlan in, a StepResult out: one folder for each way of computing."),
    "loaders": ("loaders", "Bytes on disk become a Checkpoint."),
    "text": ("text", "Text to tokens, and tokens to text."),
    "models": ("models", "What a network is, as data."),
    "core": ("core", "Policy: what runs next, and who owns which block. The standard library only."),
    "config": ("config", "Settings, and the only reader of the environment."),
}

NATIVE = """\
## native

C++20. Knows nothing of requests or of Python policy.

- `include/octavo`: the seams: kernels by name, the program, the thread pool, formats, sampling.
- `src/generic`: the algorithms, written once over a vector vocabulary of 16 lanes.
- `src/isa`: the vocabulary for each instruction set, and the algorithms compiled with it.
- `src/dispatch`: what the processor can do, and the ordered list of kernel sets with reasons to refuse.
- `src/runtime`: weight packing, KV memory, the program that runs a step, threads.
- `src/bind`: what Python sees.
"""

TESTS = """\
## tests

- `layout`: the tree itself: sizes, imports, documents.
- `core`, `property`: policy, by example and as state machines over the ledger backend.
- `contract`: one suite for all implementations of a Protocol.
- `kernels`, `models`: numbers against float64, the reference backend and stored answers of another implementation.
- `config`, `loaders`, `text`, `engine`, `server`, `tools`: one room each.
- `system`: processes as users start them, with the default model.
- `bench`: what the benchmarks are made of: models, and what they write.
- `deploy`: the chart rendered and validated, the Dockerfile; what Octavo itself says about both; alerts and dashboards.
- `clients`: what people use to talk to a server, against one; in an interpreter of their own.
"""


def sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    return " ".join((ast.get_docstring(tree(path)) or "").split("\n\n")[0].split())


def speaking_modules() -> dict[str, Path]:
    """All modules, and those packages whose `__init__` says something."""
    return {name: path for name, path in modules().items() if path.name != "__init__.py" or tree(path).body}


def room_of(name: str, path: Path) -> str:
    """The longest name of a room that the module lies in."""
    parts = name.split(".")[1:] if path.name == "__init__.py" else name.split(".")[1:-1]
    return next((room for end in range(len(parts), 0, -1) if (room := ".".join(parts[:end])) in ROOMS), "")


def document() -> str:
    lines: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name, path in sorted(speaking_modules().items()):
        lines[room_of(name, path)].append(f"- `{name}`: {sentence(path)}\n")
    rooms = [
        f"## {title}\n\n{about}\n\n{''.join(lines[room])}" for room, (title, about) in ROOMS.items() if lines[room]
    ]
    return "\n".join((HEADER, *rooms, NATIVE, TESTS))


if __name__ == "__main__":
    print(document(), end="")
