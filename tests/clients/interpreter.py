"""Programs that use a client, in the clients' own interpreter: they are heavy, and have pins of their own.

`make test` puts them into `clients/` inside the virtual environment that the tests run in.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
MISSING = f"the clients are not installed: `make {PYTHON.parents[1].name}` does that, and so does `make test`"
PROGRAMS = Path(__file__).with_name("programs")
PATIENCE_S = 150
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
    "TQDM_DISABLE": "1",
}


def environment(home: str) -> dict[str, str]:
    """What a client's process gets: nothing of this one's Python or proxies, and a folder for what it keeps."""
    ours = {name: value for name, value in os.environ.items() if not name.lower().endswith(("_proxy", "pythonpath"))}
    path = f"{PYTHON.parent}:{os.environ['PATH']}"
    return ours | OFFLINE | {"PATH": path, "HF_HOME": home, "XDG_CACHE_HOME": home}


def output_of(*command: str) -> str:
    """What a command prints that ends well, with the clients' programs first on its path."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(command, capture_output=True, text=True, env=environment(home), timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def said(program: str, *arguments: str, example: str = "") -> tuple[str, Any]:
    """What an example prints, and the JSON that a program of this folder then prints as its last line.

    In one process: importing such a client takes longer than what is asked of it.
    """
    path = str(PROGRAMS / f"{program}.py")
    program_after = (
        f"import runpy, sys; sys.argv = {[path, *arguments]!r}; runpy.run_path({path!r}, run_name='__main__')"
    )
    *shown, last = output_of(str(PYTHON), "-c", f"{example}\n{program_after}").splitlines()
    return "\n".join(shown), json.loads(last)
