"""After a client: nothing runs or waits, each block is accounted for, and nobody was answered with a 5xx."""

import re
import threading
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.system.serving import Served

PATIENCE_S = 30
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting", "octavo:blocks_reserved", "vllm:kv_cache_usage_perc")


def gauges(server: Served) -> Mapping[str, float]:
    """What /metrics says: one number for each name, and for each state of blocks."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE_S) as response:
        families = text_string_to_metric_families(response.read().decode())
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name in BUSY:
            found[sample.name] = sample.value
        elif sample.name == "octavo:blocks":
            found[sample.labels["state"]] = sample.value
        elif sample.name == "vllm:cache_config_info":
            found["total"] = float(sample.labels["num_gpu_blocks"])
    return found


def check_rest(server: Served) -> None:
    """Waits until the server is at rest: a client that went away in the middle is noticed within a step."""
    for _ in range(PATIENCE_S * 100):
        now = gauges(server)
        if not any(now[name] for name in BUSY):
            break
        threading.Event().wait(0.01)
    assert [now[name] for name in BUSY] == [0] * len(BUSY)
    assert now["leased"] == now["reserved"] == now["pinned"] == 0
    assert now["blank"] + now["cached"] == now["total"] > 0
    assert not re.findall(r"^.*(?: 5\d\d in |Traceback).*$", server.words(), re.MULTILINE)
