"""`octavo engine --fd N`: the engine process that a server starts. Not for people."""

import argparse

from octavo.config.sources import Resolved


def main(_: Resolved, options: argparse.Namespace) -> int:
    from octavo import boot

    return boot.engine_main(options.fd)
