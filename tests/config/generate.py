"""Strategies for values of each setting, and their spelling as text."""

from typing import Any

from hypothesis import strategies as st

from octavo.config.schema import Setting, settings

FREE = {
    "fault": st.sampled_from(["prefill-error", "decode-error@5", "engine-death@1", "engine-freeze@9", "slow-load=6"]),
    "speculative_config": st.sampled_from(
        ['{"num_speculative_tokens":4}', '{"method":"ngram","num_speculative_tokens":1}']
    ),
    "pooler_config": st.sampled_from(['{"pooling_type":"MEAN"}', '{"use_activation":false,"dimensions":64}']),
    "otlp_traces_endpoint": st.sampled_from(["http://127.0.0.1:4317", "https://traces.example/v1/traces"]),
    "root_path": st.sampled_from(["", "/v", "/a/b"]),
    "allowed_origins": st.lists(st.sampled_from(["*", "https://a.example", "http://b:3000"]), max_size=3).map(tuple),
}
WORDS = st.text("bcxyz0189-./", min_size=1, max_size=12).filter(lambda word: word[0] != "-")
"""No flags: argparse takes a lone `--` for its own, wherever it stands."""


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Allowed values of `setting`."""
    return st.none() | _plain(setting) if setting.optional else _plain(setting)


def _plain(setting: Setting) -> st.SearchStrategy[Any]:
    about = setting.option
    if setting.name in FREE:
        return FREE[setting.name]
    if about.choices or about.allowed:
        return st.sampled_from(about.choices or about.allowed)
    if setting.kind is bool:
        return st.booleans()
    if setting.kind is int:
        return st.integers(int(about.at_least or 0), int(2**62 if about.at_most is None else about.at_most))
    if setting.kind is float:
        lowest = about.at_least if about.above is None else about.above + 1e-9
        return st.floats(lowest, about.at_most, allow_nan=False)
    return WORDS if setting.kind is str else st.lists(WORDS, max_size=3).map(tuple)


def as_text(value: Any) -> str:
    """How a person would type it."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def some_settings() -> st.SearchStrategy[dict[str, Any]]:
    """A few settings with allowed values. Those that other settings restrict stay out."""
    names = sorted(set(settings()) - {"num_blocks", "kv_offload_path"})
    return st.sets(st.sampled_from(names), max_size=6).flatmap(
        lambda chosen: st.fixed_dictionaries({name: values(settings()[name]) for name in sorted(chosen)})
    )
