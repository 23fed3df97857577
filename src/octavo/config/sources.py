"""Where values come from: flags > environment > YAML file > default. Each value knows its origin.

The only module that reads the process environment; whoever needs something from it asks here.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from octavo.config.schema import ENV_PREFIX, Config, ConfigError, Setting, settings
from octavo.config.values import did_you_mean, read_value

CONFIG_ENV = "OCTAVO_CONFIG"
CACHE_ENV = "OCTAVO_CACHE_DIR"
OTHER_NAMES = {
    CONFIG_ENV: "YAML file to read settings from, where `--config` is not given",
    CACHE_ENV: "folder for downloaded models, instead of `octavo` in the user's cache folder",
}
"""Environment names that are no setting."""

_ELSEWHERE = (f"{ENV_PREFIX}TEST_", f"{ENV_PREFIX}TRACES")
"""What tests and benchmarks read."""
_SERVICE_LINK = re.compile(r"OCTAVO(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `flag --port`, `environment OCTAVO_PORT`, `file octavo.yaml`, `default`."""

    kind: str
    """flag | argument | environment | file | default"""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, and for each setting's name where its value came from."""

    config: Config
    origins: Mapping[str, Origin]


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    kind: str = "flag",
) -> Resolved:
    """Merges all sources. `flags` maps setting names to what was given, `file` is a YAML file.

    `environment` stands in for the process's own. `kind` is what `flags` are called in messages: flag or argument.
    Raises ConfigError for an unknown name, a value that is not allowed, and a file that cannot be read.
    """
    env = os.environ if environment is None else environment
    given = _from_flags(flags or {}, kind)
    layers = (_from_file(file or env.get(CONFIG_ENV) or None), _from_environment(env), given)
    merged = {name: found for layer in layers for name, found in layer.items()}
    values = {name: read_value(settings()[name], raw, str(origin)) for name, (raw, origin) in merged.items()}
    origins = {name: merged[name][1] if name in merged else DEFAULT for name in settings()}
    return Resolved(build(values), MappingProxyType(origins))


def from_keywords(**given: Any) -> Config:
    """The configuration for Python callers, `LLM(model=..., max_model_len=...)`: arguments > environment > file."""
    return resolve(given, kind="argument").config


def build(values: Mapping[str, Any]) -> Config:
    """A tree with these values, by setting name, and defaults for the rest."""
    sections = get_type_hints(Config)
    parts: dict[str, dict[str, Any]] = {section: {} for section in sections}
    for name, value in values.items():
        parts[settings()[name].section][name] = value
    return Config(**{section: kind(**parts[section]) for section, kind in sections.items()})


_Layer = dict[str, tuple[Any, Origin]]


def _from_flags(flags: Mapping[str, Any], kind: str) -> _Layer:
    unknown = next((name for name in flags if name not in settings()), None)
    if unknown is not None:
        raise ConfigError(f"unknown {kind} {unknown!r}{did_you_mean(unknown, settings())}")
    return {name: (raw, Origin(kind, _called(settings()[name], kind))) for name, raw in flags.items()}


def _called(setting: Setting, kind: str) -> str:
    return setting.flag if kind == "flag" else setting.name


def _from_environment(env: Mapping[str, str]) -> _Layer:
    """An empty variable counts as not set."""
    known = {setting.env: setting.name for setting in settings().values()}
    ours = {key: text for key, text in env.items() if key.startswith(ENV_PREFIX) and not _foreign(key, text)}
    unknown = next((key for key in ours if key not in known and key not in OTHER_NAMES), None)
    if unknown is not None:
        raise ConfigError(f"unknown environment variable {unknown}{did_you_mean(unknown, [*known, *OTHER_NAMES])}")
    return {known[key]: (text, Origin("environment", key)) for key, text in ours.items() if key in known and text}


def _foreign(key: str, text: str) -> bool:
    """Is this variable not meant for us? Kubernetes sets OCTAVO_PORT=tcp://... for a Service called octavo."""
    link = _SERVICE_LINK.match(key) or (key.endswith("_PORT") and _SERVICE_URL.match(text))
    return bool(link) or key.startswith(_ELSEWHERE)


def _from_file(file: str | Path | None) -> _Layer:
    if file is None:
        return {}
    values = by_name(read_yaml(Path(file)), f"{file}:", settings())
    return {name: (raw, Origin("file", str(file))) for name, raw in values.items()}


def by_name(content: Mapping[Any, Any], where: str, known: Collection[str]) -> dict[str, Any]:
    """What a mapping in a file has under known names, which may have dashes. Raises ConfigError for others."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(f"{where} unknown key {str(key)!r}{did_you_mean(name, known)}")
        if name in found:
            raise ConfigError(f"{where} {name} is given twice")
        found[name] = value
    return found


def read_yaml(file: Path) -> dict[Any, Any]:
    """The keys and values of a YAML file. Raises ConfigError where it cannot be read, or is no list of `key: value`."""
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        content: Any = yaml.safe_load(text)
        _check_keys(file, yaml.compose(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML: {_problem(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must have lines like `max-model-len: 4096`, got {type(content).__name__}")
    return cast(dict[Any, Any], content)


def _problem(error: Exception) -> str:
    """What is wrong, and in which line; without quoting the file, which may hold secrets."""
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or error).split("\n")[0]
    return what if mark is None else f"line {mark.line + 1}: {what}"


def _check_keys(file: Path, root: Any) -> None:
    """Raises ConfigError for a key that a mapping has twice: YAML's reader silently takes the last one."""
    for mapping in _mappings(root):
        lines: dict[str, int] = {}
        for key, _ in mapping.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise ConfigError(f"{file}: {name} is given twice, in lines {lines[name]} and {line}")
            lines[name] = line


def _mappings(root: Any) -> Iterator[Any]:
    """All mappings in a YAML document, each once: its nodes may even contain themselves."""
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "mapping":
            yield node
            nodes += [value for _, value in node.value]
        elif node.id == "sequence":
            nodes += node.value


def environment_text(name: str) -> str | None:
    """The value of an environment variable; None where it is unset."""
    return os.environ.get(name)


def environment_path(name: str) -> Path | None:
    """The folder that an environment variable names; None where it is unset or empty."""
    text = environment_text(name)
    return Path(text).expanduser() if text else None
