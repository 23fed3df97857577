"""Commands that end in ways that real ones do now and then."""

import argparse

from octavo.config import ConfigError
from octavo.config.sources import Resolved


def interrupted(_: Resolved, __: argparse.Namespace) -> int:
    raise KeyboardInterrupt


def refused(_: Resolved, __: argparse.Namespace) -> int:
    raise ConfigError("this is\n   wrong")


def buggy(_: Resolved, __: argparse.Namespace) -> int:
    raise ValueError("a bug")


def lost(_: Resolved, __: argparse.Namespace) -> int:
    raise FileNotFoundError(2, "No such file or directory", "x")


def announcing(_: Resolved, __: argparse.Namespace) -> int:
    print("ready", flush=True)
    return 0
