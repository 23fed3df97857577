"""Extras: modules that need packages which only some install, loaded where a setting asks for them."""

import importlib
from typing import Any

from octavo.config.schema import ConfigError

_PACKAGES = ("grpc", "opentelemetry")


def load_extra(module: str, setting: str, extra: str) -> Any:
    """A module that needs packages of this extra. Raises ConfigError where one of them is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_PACKAGES):
            raise
        missing = f"{setting} needs a package that is not installed ({error.name})"
        without = f"or go without --{setting.replace('_', '-')}"
        raise ConfigError(f"{missing}: pip install 'octavo[{extra}]'; {without}") from error
