"""Sources: the strongest wins for every setting, each value knows its origin, and no wrong name passes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config import ConfigError, sources
from octavo.config.paths import cache_dir
from octavo.config.schema import settings as all_settings
from octavo.config.sources import DEFAULT, OTHER_NAMES, from_keywords, resolve
from octavo.config.values import FALSE, SUFFIXES, TRUE, did_you_mean, parse_count
from tests.config.generate import as_text, values

ALONE = {"num_blocks": {"kv_cache_memory_bytes"}, "kv_cache_memory_bytes": {"num_blocks"}}


def layered() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A setting, and values for some of the layers file, environment and flag."""

    def with_layers(name: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
        value = values(all_settings()[name])
        layers = st.fixed_dictionaries({}, optional={layer: value for layer in ("file", "environment", "flag")})
        return st.tuples(st.just(name), layers)

    return st.sampled_from(sorted(all_settings())).flatmap(with_layers)


def given_in(name: str, layers: dict[str, Any], folder: Path) -> tuple[dict[str, str], dict[str, str], Path]:
    """`layers` as flags, environment and file, each in its own spelling."""
    setting = all_settings()[name]
    own = {name.replace("_", "-"): yaml_value(layers["file"])} if "file" in layers else {}
    if name == "kv_offload_path":
        own["kv-offload-bytes"] = 1
    file = folder / "octavo.yaml"
    file.write_text(yaml.safe_dump(own), encoding="utf-8")
    environment = {setting.env: as_text(layers["environment"])} if "environment" in layers else {}
    flags = {name: as_text(layers["flag"])} if "flag" in layers else {}
    return flags, environment, file


def yaml_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layered())
def test_the_strongest_source_wins(tmp_path: Path, case: tuple[str, dict[str, Any]]) -> None:
    name, layers = case
    flags, environment, file = given_in(name, layers, tmp_path)
    resolved = resolve(flags, file=file, environment=environment)
    said = {layer for layer in layers if not (layer == "environment" and as_text(layers[layer]) == "")}
    winner = next((layer for layer in ("flag", "environment", "file") if layer in said), None)
    setting = all_settings()[name]
    got = getattr(getattr(resolved.config, setting.section), name)
    if winner is not None:
        assert got == layers[winner]
        assert resolved.origins[name].kind == winner
    else:
        assert got == setting.default
        assert resolved.origins[name] == DEFAULT


def test_origins_name_the_flag_the_variable_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("dtype: float32\n", encoding="utf-8")
    origins = resolve({"port": "1"}, file=file, environment={"OCTAVO_HOST": "::1"}).origins
    assert str(origins["port"]) == "flag --port"
    assert str(origins["host"]) == "environment OCTAVO_HOST"
    assert str(origins["dtype"]) == f"file {file}"
    assert str(origins["seed"]) == "default"


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("port: 1234\n", encoding="utf-8")
    assert resolve(environment={"OCTAVO_CONFIG": str(file)}).config.server.port == 1234


@pytest.mark.parametrize("word", [*sorted(FALSE), "False", "FALSE"])
def test_false_means_false(word: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"enable-prefix-caching: '{word}'\n", encoding="utf-8")
    assert resolve({"enable_prefix_caching": word}, environment={}).config.cache.enable_prefix_caching is False
    env = {"OCTAVO_ENABLE_PREFIX_CACHING": word}
    assert resolve(environment=env).config.cache.enable_prefix_caching is False
    assert resolve(file=file, environment={}).config.cache.enable_prefix_caching is False


@pytest.mark.parametrize("word", sorted(TRUE))
def test_true_means_true(word: str) -> None:
    assert resolve({"enable_prefix_caching": word}, environment={}).config.cache.enable_prefix_caching is True


@pytest.mark.parametrize("word", ["", "maybe", "2", "none"])
def test_other_words_for_a_switch_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"enable_prefix_caching must be true or false.*flag --enable-prefix-caching"):
        resolve({"enable_prefix_caching": word}, environment={})


def test_an_empty_variable_counts_as_not_set() -> None:
    assert resolve(environment={"OCTAVO_PORT": ""}).origins["port"] == DEFAULT


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"flags": {"max_modle_len": "1"}}, "did you mean max_model_len?"),
        ({"environment": {"OCTAVO_PROT": "1"}}, "did you mean OCTAVO_PORT?"),
        ({"environment": {"OCTAVO_CACHEDIR": "1"}}, "did you mean OCTAVO_CACHE_DIR?"),
        ({"file": "max-num-seq: 3\n"}, "did you mean max_num_seqs?"),
    ],
)
def test_unknown_names_get_a_suggestion(wrong: dict[str, Any], hint: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(wrong.get("file", ""), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve(wrong.get("flags"), environment=wrong.get("environment", {}), file=file)
    assert "unknown" in str(caught.value) and str(caught.value).endswith(hint)


def test_a_name_like_nothing_gets_no_suggestion() -> None:
    assert did_you_mean("qqqqqqqq", all_settings()) == ""


def test_what_kubernetes_sets_for_a_service_is_left_alone() -> None:
    environment = {
        "OCTAVO_PORT": "tcp://10.0.0.1:8000",
        "OCTAVO_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_SERVICE_PORT": "8000",
        "OCTAVO_SERVICE_PORT_HTTP": "8000",
        "OCTAVO_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "OCTAVO_PORT_8000_TCP_ADDR": "10.0.0.1",
        "OCTAVO_ROUTER_SERVICE_HOST": "10.0.0.2",
        "OCTAVO_ROUTER_PORT": "tcp://10.0.0.2:80",
    }
    assert resolve(environment=environment) == resolve(environment={})


def test_what_tests_and_benchmarks_read_is_left_alone() -> None:
    environment = {"OCTAVO_TEST_MODEL": "model.gguf", "OCTAVO_TRACES": "traces"}
    assert resolve(environment=environment) == resolve(environment={})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "must have lines like"),
        ("a: [\n", "is not YAML"),
        ("port: [1]\n", "port must be a whole number"),
        ("port:\n", "port must be a whole number"),
        ("max_num_seqs: 1\nmax-num-seqs: 2\n", "given twice"),
        ("port: 1\nhost: x\nport: 2\n", "port is given twice, in lines 1 and 3"),
        ('port: 1\n"port": 1\n', "port is given twice, in lines 1 and 2"),
        ("prot: 1\nprot: 1\n", "prot is given twice"),
        ("{port: 1, port: 2}\n", "port is given twice"),
        ("1: 2\n", "unknown key '1'"),
    ],
)
def test_broken_files_are_clear_errors(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve(file=file, environment={})
    assert message in str(caught.value) and str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        resolve(file=tmp_path / "none.yaml", environment={})


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# nothing yet\n", encoding="utf-8")
    assert resolve(file=file, environment={}) == resolve(environment={})


def test_keywords_take_python_values_and_name_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "7")
    config = from_keywords(max_model_len=None, served_model_name=["a"], gpu_memory_utilization=1)
    assert config.model.served_model_name == ("a",) and config.cache.gpu_memory_utilization == 1.0
    assert config.scheduler.max_num_seqs == 7
    with pytest.raises(ConfigError, match=r"argument block_size"):
        from_keywords(block_size=3)
    with pytest.raises(ConfigError, match="unknown argument 'tensor_parallel_size'"):
        from_keywords(tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("text", "names"),
    [("a", ("a",)), ("a, b", ("a", "b")), ('["a","b"]', ("a", "b")), ("[]", ()), (" ", ())],
)
def test_lists(text: str, names: tuple[str, ...]) -> None:
    assert resolve({"served_model_name": text}, environment={}).config.model.served_model_name == names


@pytest.mark.parametrize("text", ["[1]", "[", "[{}]", "a,,b"])
def test_lists_of_other_things_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="served_model_name"):
        resolve({"served_model_name": text}, environment={})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5k", 1500),
        ("4GiB", 4 * 2**30),
        ("4gb", 4 * 10**9),
        ("4G", 4 * 2**30),
        ("4g", 4 * 10**9),
        ("12 MiB", 12 * 2**20),
        ("1_000", 1000),
        ("-1", -1),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_counts_and_sizes(text: str, number: int) -> None:
    assert parse_count(text) == number


@given(st.integers(-(2**64), 2**64), st.sampled_from(sorted(SUFFIXES)))
def test_whole_numbers_are_exact_under_every_suffix(number: int, suffix: str) -> None:
    assert parse_count(f"{number}{suffix}") == number * SUFFIXES[suffix]


@given(st.text(max_size=12))
def test_noise_is_no_number_or_a_whole_one(text: str) -> None:
    assert isinstance(parse_count(text), int | None)


@pytest.mark.parametrize("text", ["", "k", "1.0001k", "inf", "nan", "1kk", "1ki", "0x10", "one", "1e999", "1.", "."])
def test_what_is_no_whole_number(text: str) -> None:
    assert parse_count(text) is None


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(sources.CACHE_ENV, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says: ignore it
    assert cache_dir() == Path.home() / ".cache" / "octavo"
    monkeypatch.setenv(sources.CACHE_ENV, str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_other_variables_are_no_settings() -> None:
    assert not {setting.env for setting in all_settings().values()} & OTHER_NAMES.keys()
