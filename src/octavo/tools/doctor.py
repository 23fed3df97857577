"""`octavo doctor`: are this machine, this installation and this model in order? A check is a function with a finding.

A check that raises is a finding too: a doctor outlives what it looks at.
"""

import argparse
import hashlib
import http.client
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from octavo.config import Config
from octavo.config.address import near
from octavo.config.machine import available_memory_bytes, readable_bytes, usable_cpus
from octavo.config.sources import Resolved
from octavo.config.tenants import num_tenants, read_keys
from octavo.engine.client import EngineState
from octavo.loaders.hub import local_path
from octavo.models.catalog import DEFAULT_MODEL, CatalogModel, find_model, names_of
from octavo.tools.findings import Finding, State, as_json, as_text, examine, is_broken

OLDEST_PYTHON = (3, 11)
PATIENCE_S = 1.0
"""How long whoever has our port may take to say who it is."""
MAX_HEALTH_BYTES = 1000

Check = Callable[[Config], Finding]


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Exit status 1 where something is broken."""
    if options.cold_start:
        from octavo.tools import cold_start

        return cold_start.main(resolved, options)
    if options.perplexity:
        from octavo.tools import perplexity

        return perplexity.main(resolved, options)
    asks = options.production or options.url is not None
    findings = _running(resolved, options) if asks else examine(resolved.config, CHECKS)
    sys.stdout.write((as_json(findings) if options.json else as_text(findings)) + "\n")
    return int(is_broken(findings))


def _running(resolved: Resolved, options: argparse.Namespace) -> dict[str, Finding]:
    """A running server instead of this machine."""
    from octavo.tools import production, visit

    try:
        facts = production.gather(resolved, options)
    except visit.ServerRefused as error:
        return {"server": Finding(State.BROKEN, str(error))}
    return examine(facts, production.PRODUCTION if options.production else production.LIVE)


def check_python(_: Config) -> Finding:
    """Is this interpreter new enough?"""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding(State.BROKEN, f"{text}; at least {'.'.join(map(str, OLDEST_PYTHON))} is needed")
    return Finding(State.OK, text, (sys.executable,))


def check_packages(_: Config) -> Finding:
    """Is everything here that the installation asks for?"""
    names = required_packages(importlib.metadata.requires("octavo") or ())
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    details = (", ".join(f"{name} {version}" for name, version in versions.items() if version),)
    octavo = f"octavo {importlib.metadata.version('octavo')}"
    if missing:
        return Finding(State.BROKEN, f"{octavo}; not installed: {', '.join(missing)}", details)
    return Finding(State.OK, f"{octavo} and the {len(names)} packages that it needs", details)


def required_packages(requirements: Iterable[str], system: str = sys.platform) -> tuple[str, ...]:
    """Names of those requirements that are no part of an extra, and are meant for this system."""
    parts = (line.partition(";") for line in requirements)
    return tuple(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line, _, marker in parts if _applies(marker, system))


def _applies(marker: str, system: str) -> bool:
    """Is this so here? Of all that a marker can say, our own say `extra` and `sys_platform`."""
    systems = re.findall(r"sys_platform\s*([=!]=)\s*['\"](\w+)['\"]", marker)
    return "extra ==" not in marker and all((name == system) == (how == "==") for how, name in systems)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_threads(config: Config) -> Finding:
    """How many threads will compute, and why?"""
    cpus, reason = usable_cpus()
    wanted = config.engine.num_threads
    if wanted is None:
        return Finding(State.OK, f"{cpus}: {reason}")
    if wanted > cpus:
        return Finding(State.WARNING, f"{wanted} as asked for, more than there are CPUs: {reason}")
    return Finding(State.OK, f"{wanted} as asked for; {reason}")


def check_memory(config: Config) -> Finding:
    """How much memory is there for weights and KV?"""
    available, reason = available_memory_bytes()
    share = config.cache.gpu_memory_utilization
    usable = readable_bytes(int(available * share))
    text = f"{readable_bytes(available)} available, {share:.0%} of it may be used: {usable}"
    return Finding(State.OK, text, (reason,))


def check_port(config: Config) -> Finding:
    """Could a server listen where it is told to?"""
    from octavo.server.lifecycle import CannotListen, bound, listen, url_of

    try:
        with listen(config.server) as sock:
            if config.server.grpc:
                bound(config.server.host, config.server.grpc_port, "--grpc-port").close()
            return Finding(State.OK, f"{url_of(config.server, sock)} is free")
    except CannotListen as error:
        if octavo_answers(config.server.host, config.server.port):
            text = f"an Octavo server answers on {config.server.host} port {config.server.port}; a second needs another"
            return Finding(State.WARNING, f"{text} --port")
        return Finding(State.BROKEN, str(error))


def check_keys(config: Config) -> Finding:
    """Who may use a server that is started so, and is the tenants' file one that can be read?"""
    from octavo.server.lifecycle import is_public

    keys = read_keys(config)
    if keys:
        return Finding(State.OK, f"{len(keys)} keys, {num_tenants(keys)} tenants")
    if is_public(config.server.host):
        text = f"no key is asked for, and other machines can reach {config.server.host}: set --api-key or --tenants"
        return Finding(State.WARNING, text)
    return Finding(State.OK, f"no key is asked for; only this machine can reach {config.server.host}")


def octavo_answers(host: str, port: int) -> bool:
    """Is the server on that port one of ours? No other /health has our states; it is open to all."""
    connection = http.client.HTTPConnection(near(host), port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health")
        msgspec.json.decode(connection.getresponse().read(MAX_HEALTH_BYTES), type=_Health)
    except (OSError, msgspec.MsgspecError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


class _Health(msgspec.Struct):
    status: EngineState


def check_kernels(config: Config) -> Finding:
    """Which kernels can this machine run, and which of them will it?"""
    from octavo.backends.cpu.isa import candidates, choose

    details = tuple(f"{one.name:12} {'runs here' if one.accepted else one.reason}" for one in candidates())
    try:
        name, why = choose(config.engine.isa)
    except ValueError as error:
        return Finding(State.BROKEN, str(error), details)
    unused = "" if config.engine.backend == "cpu" else f"; not used by the {config.engine.backend} backend"
    return Finding(State.OK, f"{name}: {why}{unused}", details)


def check_model(config: Config) -> Finding:
    """Does the model open, is it the file that it should be, and can it generate? Downloads no catalogue model."""
    from octavo.loaders import hub
    from octavo.tools.partner import fetch

    entry = _catalogue_entry(config.model.model)
    if entry is not None and not hub.is_cached(entry):
        return Finding(State.WARNING, f"{entry.name} is not here yet; `octavo pull {entry.name}` or `serve` fetches it")
    path = fetch(config.model.model)
    digest = None if entry is None else _digest(path)
    if entry is not None and digest != entry.sha256:
        return Finding(State.BROKEN, f"{path} has sha256 {digest}, not {entry.sha256}; delete it, and pull it again")
    checked = "its sha256 is right" if entry else "no catalogue knows its sha256"
    return _one_token(config, (str(path), checked))


def _catalogue_entry(name: str | None) -> CatalogModel | None:
    if name is None:
        return DEFAULT_MODEL
    return None if local_path(name) is not None else find_model(name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_token(config: Config, details: tuple[str, ...]) -> Finding:
    """Loads the model as a server would, and lets it say one thing."""
    from octavo.core.sampling import SamplingParams
    from octavo.tools.partner import open_partner
    from octavo.tools.terminal import ignore

    with open_partner(config) as (partner, facts):
        output = partner.complete("The capital of France is", SamplingParams(temperature=0, max_tokens=1), ignore)
    name = names_of(config.model.model, config.model.served_model_name)[0]
    text = f"{name} ({facts.weight_format}) loads and generates: {output.outputs[0].text!r}"
    warnings = tuple(f"{State.WARNING}: {line}" for line in facts.warnings)
    return Finding(State.WARNING if warnings else State.OK, text, (*details, *facts.report, *warnings))


CHECKS: Mapping[str, Check] = {
    "python": check_python,
    "packages": check_packages,
    "kernels": check_kernels,
    "threads": check_threads,
    "memory": check_memory,
    "port": check_port,
    "keys": check_keys,
    "model": check_model,
}
