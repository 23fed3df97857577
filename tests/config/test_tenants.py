"""The tenants' file: settings are read, mistakes are clear and show no key, noise is refused."""

import hashlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config.schema import Config, ConfigError, SchedulerConfig, ServerConfig, section_settings
from octavo.config.tenants import NOBODY, Rules, Tenant, digest_of, read_keys
from tests.config.generate import values

SECRET = "sk-hunter2"


def read(folder: Path, content: str, policy: str = "priority", api_key: tuple[str, ...] = ()) -> dict[bytes, Tenant]:
    file = folder / "tenants.yaml"
    file.write_text(content, encoding="utf-8")
    server = ServerConfig(tenants=str(file), api_key=api_key)
    return dict(read_keys(Config(scheduler=SchedulerConfig(scheduling_policy=policy), server=server)))


def test_without_a_file_the_keys_are_nobodys() -> None:
    assert read_keys(Config()) == {}
    assert read_keys(Config(server=ServerConfig(api_key=("a", "b")))) == {
        digest_of(b"a"): NOBODY,
        digest_of(b"b"): NOBODY,
    }
    assert NOBODY.rules.operator


def test_the_example_of_the_documentation_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setenv("BATCH_KEY", "k")
    names = {tenant.name for tenant in read(tmp_path, example, policy="fcfs").values()}
    assert names == {"research", "batch"}


def test_a_file_with_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_KEY", "from-the-environment")
    keys = read(
        tmp_path,
        f"""
defaults:
  requests-per-minute: 60
  tokens_per_minute: 200k
tenants:
  research:
    keys: [{SECRET}, "sha256:{hashlib.sha256(b"second").hexdigest()}"]
    cache: lab
    highest_priority: -5
  batch:
    keys: env:BATCH_KEY
    priority: 10
    requests_per_minute: auto
    concurrent_requests: 4
    max_tokens_per_request: 4K
""",
        api_key=("own",),
    )
    research, batch = keys[digest_of(SECRET.encode())], keys[digest_of(b"from-the-environment")]
    assert research is keys[digest_of(b"second")] and keys[digest_of(b"own")] is NOBODY and len(keys) == 4
    assert research == Tenant(
        "research", Rules(requests_per_minute=60, tokens_per_minute=200_000, cache="lab", highest_priority=-5)
    )
    assert batch.rules.requests_per_minute is None and batch.rules.tokens_per_minute == 200_000
    assert (batch.rules.concurrent_requests, batch.rules.max_tokens_per_request) == (4, 4096)
    assert (batch.rules.most_urgent, research.rules.most_urgent) == (10, -5)
    assert not batch.rules.operator


FREE = {
    "cache": st.sampled_from(["private", "lab"]),
    "highest_priority": st.none() | st.integers(-(2**31), 0),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_setting_is_read_as_it_is_written(tmp_path: Path, data: st.DataObject) -> None:
    setting = data.draw(st.sampled_from(section_settings("tenants", Rules)))
    value = data.draw(FREE[setting.name] if setting.name in FREE else values(setting))
    content = {"tenants": {"a": {"keys": ["k"], setting.name.replace("_", "-"): value}}}
    policy = "fair" if setting.name == "weight" else "priority"
    (tenant,) = read(tmp_path, yaml.safe_dump(content), policy=policy).values()
    assert getattr(tenant.rules, setting.name) == value
    others = {field.name for field in fields(Rules)} - {setting.name}
    assert all(getattr(tenant.rules, name) == getattr(Rules(), name) for name in others)


A = "tenants: {a: {keys: [k]"
WRONG: dict[str, tuple[str, str]] = {
    "empty": ("", "tenants must have a name"),
    "no tenants": ("defaults: {}\n", "tenants must have a name"),
    "a list": ("- a\n", "must have lines like"),
    "a typo at the top": ("tenant: {a: {keys: [k]}}", "did you mean tenants?"),
    "a typo": (
        f"{A}, request_per_minute: 3}}}}",
        "a: unknown key 'request_per_minute'; did you mean requests_per_minute?",
    ),
    "a typo of keys": ("tenants: {a: {key: [k]}}", "did you mean keys?"),
    "keys for all": ("defaults: {keys: [k]}\ntenants: {a: {keys: [k]}}", "unknown key 'keys'"),
    "twice": ("tenants:\n  a: {keys: [k]}\n  a: {keys: [l]}\n", "a is given twice, in lines 2 and 3"),
    "in two spellings": (f"{A}, max-tokens-per-request: 3, max_tokens_per_request: 3}}}}", "is given twice"),
    "a value": (f"{A}, tokens_per_minute: many}}}}", "tokens_per_minute must be a whole number from 1"),
    "out of range": (f"{A}, concurrent_requests: 0}}}}", "concurrent_requests must be a whole number from 1"),
    "two priorities": (f"{A}, priority: 1, highest_priority: 2}}}}", "a: highest_priority is 2, a higher number than"),
    "a group": (f"{A}, cache: 'a b'}}}}", "cache is 'a b'"),
    "a name": ("tenants: {'a b': {keys: [k]}}", "a tenant's name is"),
    "a name that is a switch": ("tenants: {on: {keys: [k]}}", "a tenant's name is"),
    "a name with a meaning": ("tenants: {default: {keys: [k]}}", "none of default, other"),
    "keys missing": ("tenants: {a: {priority: 1}}", "keys must be a list of texts"),
    "keys empty": ("tenants: {a: {keys: []}}", "keys must be a list of texts"),
    "a key that is a number": ("tenants: {a: {keys: [123456]}}", "keys must be a list of texts"),
    "a broken digest": (f"tenants: {{a: {{keys: ['sha256:{SECRET}']}}}}", "64 hexadecimal digits"),
    "a variable": ("tenants: {a: {keys: ['env:NO_SUCH_VARIABLE']}}", "'NO_SUCH_VARIABLE'"),
    "a key with a space": (f"tenants: {{a: {{keys: ['{SECRET} ']}}}}", "no header can carry"),
    "a shared key": (f"tenants: {{a: {{keys: [{SECRET}]}}, b: {{keys: [{SECRET}]}}}}", "a key of b is one of a, too"),
    "no mapping": ("tenants: {a: 5}", "a: must have lines like"),
    "a key in a wrong place": (f"tenants: {{a: [{SECRET}]}}", "a: must have lines like `keys: ...`, got list"),
    "a key instead of all": (f"{SECRET}", "must have lines like"),
    "no YAML": (f"tenants: {{a: {{keys: [{SECRET}]}}]", "is not YAML: line 1:"),
    "a tab": (f"tenants:\n\ta: {SECRET}", "is not YAML: line 2:"),
    "a day that is none": ("tenants: 2001-99-99", "is not YAML"),
    "deep": ("[" * 5000, "is not YAML"),
    "within itself": ("tenants: &a {a: *a}", "unknown key 'a'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_clear_and_show_no_key(name: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    said = str(caught.value)
    assert message in said and str(tmp_path / "tenants.yaml") in said and SECRET not in said


def test_a_key_of_the_command_line_is_no_tenants(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a key of a is one of --api-key, too"):
        read(tmp_path, "tenants: {a: {keys: [k]}}", api_key=("k",))


@pytest.mark.parametrize("rules", ["priority: 1", "highest_priority: -1", "weight: 2"])
def test_what_the_scheduler_does_not_look_at_is_refused(rules: str, tmp_path: Path) -> None:
    content = f"tenants: {{a: {{keys: [k], {rules}}}}}"
    what, needed = ("weight", "fair") if "weight" in rules else ("priority", "priority")
    for policy in {"fcfs", "priority", "fair"} - {needed}:
        with pytest.raises(ConfigError, match=f"a has a {what}, but the server runs with --scheduling-policy {policy}"):
            read(tmp_path, content, policy=policy)
    assert read(tmp_path, content, policy=needed)


def test_a_file_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(Config(server=ServerConfig(tenants="no-such-file.yaml")))


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tenants", "defaults", "a", "keys", "priority", "cache"]) | st.text(), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees.map(lambda tree: yaml.safe_dump(tree)) | st.text())
def test_noise_is_refused_or_read(tmp_path: Path, content: str) -> None:
    folder = tmp_path
    (folder / "tenants.yaml").write_bytes(content.encode("utf-8", "surrogatepass"))
    config = Config(server=ServerConfig(tenants=str(folder / "tenants.yaml")))
    try:
        keys: Any = read_keys(config)
    except ConfigError:
        return
    assert all(isinstance(tenant, Tenant) and tenant.name for tenant in keys.values())
