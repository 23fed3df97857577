"""`octavo serve`: fetch the model where it is missing, then serve it until told to stop."""

import argparse

from octavo.config.sources import Resolved
from octavo.tools.pull import fetch


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    from octavo import boot

    fetch(resolved.config.model.model)
    return boot.serve(resolved.config, resolved.origins)
