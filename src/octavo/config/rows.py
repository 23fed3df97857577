"""Rows: each setting with its value and where that came from, fit to be shown: secrets are not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from octavo.config.schema import Config, Setting, settings


@dataclass(frozen=True, slots=True)
class Row:
    setting: Setting
    value: Any
    """As it is, but for secrets: `***` for each."""
    origin: str | None
    """`flag --port`, `environment OCTAVO_PORT`, `file octavo.yaml`, `default`; None where nobody knows."""

    @property
    def words(self) -> str:
        """The value as it could be given: `auto`, `true`, `a,b`; a dash for none."""
        if self.value is None:
            return "auto"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        is_list = isinstance(self.value, list | tuple)
        return (",".join(cast(Sequence[str], self.value)) if is_list else str(self.value)) or "-"


def rows(config: Config, origins: Mapping[str, Any]) -> list[Row]:
    """All settings, in the order of the tree. `origins`: of each setting, by its name, as far as they are known."""
    return [
        Row(setting, shown(setting, value_of(config, setting)), _text(origins.get(setting.name)))
        for setting in settings().values()
    ]


def value_of(config: Config, setting: Setting) -> Any:
    return getattr(getattr(config, setting.section), setting.name)


def shown(setting: Setting, value: Any) -> Any:
    """The value without what is secret."""
    return ["***"] * len(value) if setting.option.secret else value


def _text(origin: object) -> str | None:
    return None if origin is None else str(origin)
