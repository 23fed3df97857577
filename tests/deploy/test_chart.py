"""The Helm chart: what it makes of values is valid for Kubernetes, safe, and fits the server that it starts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from octavo.cli import COMMANDS, build_parser, parse
from octavo.config.schema import ServerConfig
from octavo.config.sources import Resolved, resolve
from octavo.server.app import ROUTES
from octavo.server.catalogue.page import METRICS
from octavo.server.health_grpc import SERVICES
from octavo.tools.cold_start import READY, STARTING, Start, probes
from tests.deploy.charts import CHART, Manifest, Values, manifests, render
from tests.deploy.custom import SCHEMAS, problems
from tests.layout.project import ROOT

OLDEST, NEWEST = "1.27", "1.37"
KEYS = {"auth": {"keys": ["first", "second"]}}
MONITORED = {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
MEASURED = {"probes": probes([Start(((STARTING, 0.0), (READY, 130.0)), 131.0, 0.2)])}

CASES: dict[str, Values] = {
    "defaults": {},
    "settings": {
        "config": {"max-model-len": 8192, "kv_offload_bytes": 20_000_000_000, "served_model_name": ["a", "b"]},
        "extraArgs": ["--max-num-seqs", "32"],
        "extraEnv": [{"name": "OCTAVO_STRICT", "value": "true"}],
        "shutdown": {"delay": 2.5, "timeout": 600},
    },
    "hub model with a claim": {
        "model": {"name": "org/name:Q4_K_M", "hubTokenSecret": "hub"},
        "cache": {"create": True, "size": "50Gi", "storageClass": "fast"},
    },
    "model on a claim": {"model": {"path": "llama/model.gguf", "claim": "models"}, "replicas": 3},
    "keys": {**KEYS, **MONITORED},
    "keys and tenants that are there": {"auth": {"existingSecret": "keys", "tenantsSecret": "tenants"}, **MONITORED},
    "gRPC": {"grpc": {"enabled": True}},
    "HPA": {"autoscaling": {"kind": "hpa", "min": 2, "max": 9}, **MONITORED},
    "KEDA": {"autoscaling": {"kind": "keda", "keda": {"authenticationRef": "prometheus"}}, **MONITORED},
    "measured": MEASURED,
    "placed": {
        "image": {"repository": "registry.example/octavo", "tag": "v2"},
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"cpu": "zen4"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"c": "d"}},
        "extraVolumes": [{"name": "tier", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "tier", "mountPath": "/tier"}],
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 4317, "protocol": "TCP"}]}]},
    },
    "bare": {"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}, "topologySpreadKeys": []},
}
REFUSED: dict[str, tuple[Values, str]] = {
    "a typo": ({"replica": 2}, "'replica' not allowed"),
    "a typo deep down": ({"probes": {"startup": {"period": 3}}}, "'period' not allowed"),
    "a path without a claim": ({"model": {"path": "x.gguf"}}, "model.path needs model.claim"),
    "two models": ({"model": {"path": "x", "claim": "c", "name": "y"}}, "model.path and model.name both"),
    "keys twice": ({"auth": {"keys": ["a"], "existingSecret": "b"}}, "auth.keys and auth.existingSecret both"),
    "a key that is two": ({"auth": {"keys": ["a,b"]}}, "does not match pattern"),
    "the chart's own setting": ({"config": {"shutdown-delay": 3}}, "the value for it is shutdown.delay"),
    "a key in the open": ({"config": {"api_key": ["k"]}}, "the value for it is auth"),
    "one volume for many": ({"replicas": 2, "cache": {"create": True}}, "must have ReadWriteMany"),
    "one volume for those to come": ({"autoscaling": {"kind": "hpa"}, "cache": {"create": True}}, "ReadWriteMany"),
    "another scaler": ({"autoscaling": {"kind": "vpa"}}, "autoscaling/kind"),
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, dict[str, str]]:
    return render({**CASES, **{name: values for name, (values, _) in REFUSED.items()}})


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, rendered: dict[str, dict[str, str]]) -> dict[str, Manifest]:
    """The manifests of each case, by kind."""
    texts = rendered[request.param]
    assert "refused" not in texts, texts["refused"]
    return manifests(texts)


@pytest.fixture
def of(rendered: dict[str, dict[str, str]]) -> Any:
    return lambda name: manifests(rendered[name])


def pod(case: dict[str, Manifest]) -> Manifest:
    return case["Deployment"]["spec"]["template"]["spec"]


def server(case: dict[str, Manifest]) -> Manifest:
    (container,) = pod(case)["containers"]
    return container


def environment_of(case: dict[str, Manifest]) -> list[Manifest]:
    return server(case).get("env", [])


def is_custom(manifest: Manifest) -> bool:
    return manifest["kind"] in ("ServiceMonitor", "ScaledObject")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_all_is_valid_for_kubernetes(case: dict[str, Manifest], version: str) -> None:
    assert {"ConfigMap", "Deployment", "Service"} <= case.keys()
    for manifest in case.values():
        if not is_custom(manifest):
            assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_the_pod_of_helm_test_is_valid(rendered: dict[str, dict[str, str]]) -> None:
    manifest = yaml.safe_load(rendered["defaults"]["tests/ready.yaml"])
    kubernetes_validate.validate(manifest, OLDEST, strict=True)
    assert_confined(manifest["spec"])


def test_custom_resources_are_valid_for_their_operators(rendered: dict[str, dict[str, str]]) -> None:
    custom = [each for name in CASES for each in manifests(rendered[name]).values() if is_custom(each)]
    assert {each["kind"] for each in custom} == {"ServiceMonitor", "ScaledObject"}
    assert problems(custom) == ""
    del custom[0]["spec"]["selector"]
    assert "must have required property" in problems(custom)


NOT_DESCENDED = {"metadata", "selector", "credentials", "behavior"}
"""Free keys, or Kubernetes' own types: the behavior is that of the HPA, which is validated strictly."""
DECLARED_IN = {
    "ScaledObject": "keda/keda.sh/v1alpha1",
    "ServiceMonitor": "prometheus-operator/monitoring.coreos.com/v1",
}


@pytest.mark.parametrize("kind", DECLARED_IN)
def test_custom_resources_have_no_field_that_their_operator_would_drop(kind: str, of: Any) -> None:
    """Schemas of custom resources let unknown fields pass, so each name is looked up in the declared types."""
    types = (SCHEMAS / "node_modules" / "@kubernetes-models" / DECLARED_IN[kind]).glob("*.d.ts")
    declared = {
        name for path in types for name in re.findall(r'^ +"?(\w+)"?\??:', path.read_text("utf-8"), re.MULTILINE)
    }
    assert len(declared) > 50
    assert set(fields(of("KEDA")[kind]["spec"])) <= declared


def fields(value: Any) -> Iterator[str]:
    """The names of all fields below, but those that nobody declares."""
    for key, below in value.items() if isinstance(value, dict) else ():
        yield key
        if key not in NOT_DESCENDED:
            for each in below if isinstance(below, list) else [below]:
                yield from fields(each)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_a_reason(rendered: dict[str, dict[str, str]], name: str) -> None:
    assert REFUSED[name][1] in rendered[name]["refused"]


def read(case: dict[str, Manifest], folder: Path) -> Resolved:
    """The configuration of the server that a pod starts: its file, its environment, and its arguments."""
    mounted = folder / "octavo.yaml"
    mounted.write_text(case["ConfigMap"]["data"]["octavo.yaml"], encoding="utf-8")
    command, *words = server(case)["args"]
    options = parse(build_parser(command, COMMANDS[command]), words)
    assert options.config_file == "/etc/octavo/octavo.yaml"
    environment = {each["name"]: each.get("value", "a,b") for each in environment_of(case)}
    flags = {name: value for name, value in vars(options).items() if name in COMMANDS[command].settings()}
    return resolve(flags, file=mounted, environment=environment)


def test_octavo_reads_the_settings(case: dict[str, Manifest], tmp_path: Path) -> None:
    config = read(case, tmp_path).config
    assert (config.server.host, config.server.port) == ("0.0.0.0", server(case)["ports"][0]["containerPort"])
    assert bool(config.server.api_key) == any(each["name"] == "OCTAVO_API_KEY" for each in environment_of(case))


def test_values_become_settings(of: Any, tmp_path: Path) -> None:
    config = read(of("settings"), tmp_path).config
    assert (config.model.max_model_len, config.cache.kv_offload_bytes) == (8192, 20_000_000_000)
    assert (config.scheduler.max_num_seqs, config.server.strict) == (32, True)
    assert (config.server.shutdown_delay, config.server.shutdown_timeout) == (2.5, 600)
    assert read(of("hub model with a claim"), tmp_path).config.model.model == "org/name:Q4_K_M"
    assert read(of("model on a claim"), tmp_path).config.model.model == "/models/llama/model.gguf"
    assert read(of("defaults"), tmp_path).config.model.model is None
    tenants = read(of("keys and tenants that are there"), tmp_path).config.server.tenants
    assert tenants is not None and Path(tenants).parent.as_posix() in mounts(
        server(of("keys and tenants that are there"))
    )


def mounts(container: Manifest) -> dict[str, str]:
    return {each["mountPath"]: each["name"] for each in container["volumeMounts"]}


def test_what_is_mounted_is_there_and_nothing_is_mounted_inside_a_read_only_volume(case: dict[str, Manifest]) -> None:
    volumes = {each["name"] for each in pod(case)["volumes"]}
    for container in containers(pod(case)):
        paths = [Path(path) for path in mounts(container)]
        assert set(mounts(container).values()) <= volumes
        assert not [path for path in paths for other in paths if other in path.parents]


def containers(spec: Manifest) -> Iterator[Manifest]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def assert_confined(spec: Manifest) -> None:
    """As the Pod Security Standard `restricted` wants it, and more."""
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for container in containers(spec):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_nothing_may_more_than_it_needs(case: dict[str, Manifest]) -> None:
    assert_confined(pod(case))
    for container in containers(pod(case)):
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_pod_is_left_alone_until_the_server_has_drained(case: dict[str, Manifest], tmp_path: Path) -> None:
    config = read(case, tmp_path).config.server
    assert pod(case)["terminationGracePeriodSeconds"] >= config.shutdown_delay + config.shutdown_timeout + 10
    readiness = server(case)["readinessProbe"]
    assert config.shutdown_delay >= 2.5 and readiness["periodSeconds"] * readiness["failureThreshold"] <= 10


def test_probes_ask_what_is_answered(case: dict[str, Manifest], tmp_path: Path) -> None:
    config = read(case, tmp_path).config.server
    asks = {kind: server(case)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    names = {port["name"] for port in server(case)["ports"]}
    if config.grpc:
        services = {kind: probe["grpc"]["service"] for kind, probe in asks.items()}
        assert services == {
            "startup": "octavo.readiness",
            "liveness": "octavo.liveness",
            "readiness": "octavo.readiness",
        }
        assert set(services.values()) <= SERVICES.keys()
        assert {probe["grpc"]["port"] for probe in asks.values()} == {config.grpc_port}
    else:
        paths = {kind: probe["httpGet"]["path"] for kind, probe in asks.items()}
        assert paths == {"startup": "/health/ready", "liveness": "/health", "readiness": "/health/ready"}
        assert set(paths.values()) <= {route.path for route in ROUTES if route.method == "GET"}
        assert {probe["httpGet"]["port"] for probe in asks.values()} <= names


def test_what_the_doctor_measures_can_be_pasted(of: Any) -> None:
    found = of("measured")
    assert {kind: times(server(found)[f"{kind}Probe"]) for kind in MEASURED["probes"]} == MEASURED["probes"]
    startup = MEASURED["probes"]["startup"]
    assert (
        found["Deployment"]["spec"]["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]
    )


def times(probe: Manifest) -> dict[str, int]:
    return {key: value for key, value in probe.items() if key.endswith("Seconds") or key == "failureThreshold"}


def test_the_defaults_are_those_of_a_measured_start() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert values["probes"] == probes([Start(((STARTING, 0.0), (READY, 2.6)), 3.0, 0.05)])


def test_selectors_find_the_pods(case: dict[str, Manifest]) -> None:
    labels = case["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [case["Service"]["spec"]["selector"], case["Deployment"]["spec"]["selector"]["matchLabels"]]
    selectors += [
        case[kind]["spec"][key]["matchLabels"]
        for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector"))
        if kind in case
    ]
    selectors += [each["labelSelector"]["matchLabels"] for each in pod(case).get("topologySpreadConstraints", ())]
    assert all(selector.items() <= labels for selector in selectors)


def test_metrics_are_found_and_may_be_read(of: Any) -> None:
    """The monitor selects the Service, names its port, and has a key that is a single one."""
    found = of("keys")
    monitor = found["ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in found["Service"]["spec"]["ports"]}
    secret = found["Secret"]["stringData"]
    assert secret[endpoint["authorization"]["credentials"]["key"]] == "first"
    (key,) = (each["valueFrom"]["secretKeyRef"] for each in environment_of(found) if each["name"] == "OCTAVO_API_KEY")
    assert key["name"] == found["Secret"]["metadata"]["name"] and secret[key["key"]] == "first,second"
    peers = [peer for rule in found["NetworkPolicy"]["spec"]["ingress"] for peer in rule["from"]]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}} in peers
    assert "ServiceMonitor" not in of("defaults") and "Secret" not in of("defaults")


def test_scaling_follows_metrics_that_there_are(of: Any) -> None:
    import promql_parser

    scaled = of("KEDA")["ScaledObject"]["spec"]
    exposed = {metric.name for metric in METRICS}
    for trigger in scaled["triggers"]:
        total = promql_parser.parse(trigger["metadata"]["query"])
        assert str(total.op) == "sum" and total.expr.name in exposed
        labels = {matcher.name: matcher.value for matcher in total.expr.matchers.matchers}
        assert labels == {"namespace": "llm", "service": of("KEDA")["Service"]["metadata"]["name"]}
        assert trigger["metricType"] == "AverageValue" and float(trigger["metadata"]["threshold"]) > 0
    scaler = of("HPA")["HorizontalPodAutoscaler"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 9)
    assert [each["pods"]["target"]["averageValue"] for each in scaler["metrics"]] == ["4", "800m"]
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    for name in ("HPA", "KEDA"):
        assert "replicas" not in of(name)["Deployment"]["spec"]


def test_the_documented_adapter_serves_what_the_hpa_asks_for(of: Any) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    rules = yaml.safe_load(
        next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "rules" in block)
    )
    served = {rule["name"]["as"]: rule["seriesQuery"].partition("{")[0] for rule in rules["rules"]}
    assert [each["pods"]["metric"]["name"] for each in of("HPA")["HorizontalPodAutoscaler"]["spec"]["metrics"]] == list(
        served
    )
    assert set(served.values()) <= {metric.name for metric in METRICS}


def test_a_pod_that_fetches_nothing_may_reach_nothing(of: Any) -> None:
    assert of("model on a claim")["NetworkPolicy"]["spec"]["egress"] == []
    assert "initContainers" not in pod(of("model on a claim"))
    ports = [port["port"] for rule in of("defaults")["NetworkPolicy"]["spec"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 443]


def test_what_is_fetched_is_what_is_served(of: Any) -> None:
    (fetch,) = pod(of("hub model with a claim"))["initContainers"]
    assert fetch["args"] == ["pull", "org/name:Q4_K_M"]
    assert mounts(fetch)["/cache"] == mounts(server(of("hub model with a claim")))["/cache"]
    (fetch,) = pod(of("settings"))["initContainers"]
    assert {"name": "OCTAVO_STRICT", "value": "true"} in fetch["env"], "an index or a proxy is named so"
    (fetch,) = pod(of("defaults"))["initContainers"]
    assert fetch["args"] == ["pull"]
    options = parse(build_parser("pull", COMMANDS["pull"]), fetch["args"][1:])
    assert options.name is None


def test_new_keys_and_settings_restart_the_pods(of: Any) -> None:
    def sums(name: str) -> dict[str, str]:
        return of(name)["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert sums("settings")["checksum/config"] != sums("defaults")["checksum/config"]
    assert "checksum/keys" in sums("keys")


def test_a_volume_of_one_node_is_given_up_before_the_next_pod_needs_it(of: Any) -> None:
    strategy = of("hub model with a claim")["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 0, "maxUnavailable": 1}
    assert of("defaults")["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_notes_say_how_to_reach_it(rendered: dict[str, dict[str, str]]) -> None:
    notes = rendered["placed"]["NOTES.txt"]
    assert "http://demo-octavo.llm:8080/v1" in notes and "It asks for no key" in notes
    assert "get secret -n llm demo-octavo" in rendered["keys"]["NOTES.txt"]


def test_the_charts_version_is_octavos() -> None:
    import octavo

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == octavo.__version__
    assert ServerConfig().port == 8000
