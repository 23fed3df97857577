"""docs/reference/configuration.md, made from the schema. `python -m octavo.config.docs` prints it."""

import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from octavo.config.schema import Config, Setting, describe, section_settings
from octavo.config.sources import OTHER_NAMES
from octavo.config.tenants import Rules

_HEAD = """# Configuration

Generated from `octavo.config` by `python -m octavo.config.docs`; a test keeps it so.

Each setting is a flag, an environment variable and a key of the YAML file that `--config FILE` names. Flags win over
the environment, the environment over the file, the file over the default. `octavo config` prints each value with where
it came from. An unknown flag, variable or key is an error.

- Switches are `--x` and `--no-x`; elsewhere `true` or `false`.
- Counts and sizes may be written `32k` (32,000), `32K` (32,768), `1.5M`, `4GB`, `4GiB`.
- Lists are `a,b`, a JSON list, a repeated flag, or a YAML list.
- `auto` asks for the behaviour of a value that is not given. An empty variable counts as not set.
- Variables that Kubernetes sets for a Service called `octavo` (`OCTAVO_PORT=tcp://...`) are left alone.
"""

_TENANTS = """What one tenant may do. `keys` is the list of its API keys: as they are, as `sha256:HEX` (from
`printf %s KEY | sha256sum`), or as `env:NAME`. What stands under `defaults` holds for each tenant that does not say
otherwise. [Operations](../operations.md) has an example.

| key | value | default | meaning |
|---|---|---|---|""".splitlines()


def reference() -> str:
    """The whole page."""
    sections = (line for name, kind in get_type_hints(Config).items() for line in _section(name, kind))
    names = (f"| `{name}` | {text} |" for name, text in OTHER_NAMES.items())
    tenants = ("", "## In the tenants' file", "", *_TENANTS, *map(_rule, section_settings("tenants", Rules)))
    others = ("", "## Other variables", "", "| variable | meaning |", "|---|---|", *names)
    return "\n".join([_HEAD.rstrip(), *sections, *tenants, *others]) + "\n"


def _section(name: str, kind: type) -> Iterator[str]:
    yield from ("", f"## {name}", "", (kind.__doc__ or "").strip(), "")
    yield from ("| flag, variable | value | default | meaning |", "|---|---|---|---|")
    for setting in section_settings(name, kind):
        yield f"| {_names(setting)} | {_allowed(setting)} | {_default(setting)} | {_cell(setting.option.help)} |"


def _rule(setting: Setting) -> str:
    return f"| `{setting.name}` | {_allowed(setting)} | {_default(setting)} | {_cell(setting.option.help)} |"


def _names(setting: Setting) -> str:
    flags = (setting.flag, *setting.option.aliases) if setting.option.flag else ()
    return " ".join(f"`{name}`" for name in (*flags, setting.env))


def _allowed(setting: Setting) -> str:
    unit = f", {setting.option.unit}" if setting.option.unit else ""
    return _cell(describe(setting) + unit)


def _default(setting: Setting) -> str:
    value: Any = setting.default
    if value is None:
        return f"auto: {setting.option.none_means}"
    if value == () or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
