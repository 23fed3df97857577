"""The configuration: one frozen tree, and beside each field all that is known about it.

Flags, environment names, YAML keys, checks, `--help`, `octavo config` and docs/reference/configuration.md are made from
these fields and nothing else. A field is here only because some code reads it. A tree that exists is valid: each
section checks itself, whoever built it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, cast, get_args, get_type_hints

from octavo.config import checks
from octavo.config.logs import FORMATS, LEVELS

ENV_PREFIX = "OCTAVO_"


class ConfigError(ValueError):
    """A setting that cannot be used: the message says which, its value, what is allowed, and where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is known about one field beside its type and default."""

    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    at_least: int | float | None = None
    at_most: int | float | None = None
    above: int | float | None = None
    allowed: tuple[int, ...] = ()
    """For whole numbers: the only values."""
    check: Callable[[Any], str | None] | None = None
    """Returns what is wrong with a value that is of the right type and in range."""
    none_means: str = ""
    """What the value None does; such a field accepts the word `auto`."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the flag."""
    secret: bool = False
    """Shown as *** everywhere."""
    flag: bool = True
    """False: the environment and the file only (hooks for tests)."""


def option(default: Any, **about: Any) -> Any:
    """A dataclass field with an Option in its metadata."""
    return field(default=default, metadata={"option": Option(**about)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its weights and text are to be read."""

    model: str | None = option(
        None,
        help="GGUF file, Hugging Face directory, hub id, or a name of the catalogue",
        none_means="the catalogue's default model",
    )
    served_model_name: tuple[str, ...] = option(
        (),
        help="names that clients may use for the model; answers carry the first. Empty: the model's own",
        check=checks.names,
    )
    dtype: str = option(
        "auto",
        help="number format of weights; auto keeps the file's (float16 becomes bfloat16)",
        choices=("auto", "float32", "bfloat16"),
    )
    quantization: str | None = option(
        None,
        help="round float matrices at load, in groups of 32: int8, or int4 with embeddings and output head in int8",
        choices=("int8", "int4"),
        none_means="as the file has them",
    )
    max_model_len: int | None = option(
        None,
        help="context: prompt plus generated tokens of one choice",
        unit="tokens",
        at_least=1,
        none_means="the model's own context, lowered to what the KV memory holds",
    )
    tokenizer: str | None = option(
        None, help="take the tokenizer from this GGUF file or directory", none_means="the model's own"
    )
    chat_template: str | None = option(
        None, help="a Jinja2 chat template: a file, or the template itself", none_means="the model's own"
    )
    allow_special_tokens_in_text: bool = option(
        False, help="control tokens that stand in prompts and messages count as such: only for clients that you trust"
    )
    pooler_config: str | None = option(
        None,
        help="how embeddings are made, as JSON: which hidden states are pooled (LAST or MEAN), whether vectors get the "
        'length 1, how many of their numbers are kept: {"pooling_type": "MEAN", "use_activation": true, '
        '"dimensions": 256}',
        none_means="the last token's hidden state, of length 1, whole",
        check=checks.pooler,
    )
    seed: int | None = option(
        None,
        help="seed of the stream from which requests without a seed of their own draw one",
        at_least=0,
        at_most=2**64 - 1,
        none_means="drawn from the system",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.quantization is not None and self.dtype != "auto":
            raise ConfigError("dtype and quantization both say what weights become: give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How much memory the KV cache takes, and how it is cut."""

    block_size: int = option(16, help="tokens in a KV block", unit="tokens", allowed=(8, 16, 32, 64, 128))
    gpu_memory_utilization: float = option(
        0.9,
        help="share of the available memory (main memory on a CPU) for weights and KV together",
        above=0,
        at_most=1,
        aliases=("--memory-utilization",),
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        help="memory for the KV cache, instead of a share",
        unit="bytes",
        at_least=1,
        none_means="what --gpu-memory-utilization leaves",
    )
    num_blocks: int | None = option(
        None,
        help="blocks in the KV cache, instead of an amount of memory",
        unit="blocks",
        at_least=1,
        none_means="as many as the memory holds",
        aliases=("--num-gpu-blocks-override",),
    )
    enable_prefix_caching: bool = option(True, help="reuse the KV of equal prompt beginnings")
    prefix_match_unit: int = option(
        4,
        help="a cached block is hit in part, by copying it, if so many tokens or a multiple are equal; from the block "
        "size on it is hit as a whole only",
        unit="tokens",
        at_least=1,
    )
    eviction_policy: str = option(
        "adaptive",
        help="which cached block is given up first; adaptive is lru with more patience for what was reused",
        choices=("adaptive", "lru", "fifo", "s3fifo", "gdsf"),
    )
    pin_quota: float = option(
        0.25,
        help="share of the KV blocks that one tenant may pin (POST /octavo/v1/pins); 0: none",
        at_least=0,
        at_most=0.5,
    )
    prefix_caching_hash_algo: str = option(
        "sha256",
        help="how keys of cached blocks are made; sha256_cbor: easily the same in any language; xxh3_128: fastest, "
        "needs the package xxhash",
        choices=("sha256", "sha256_cbor", "blake2b", "xxh3_128"),
    )
    kv_cache_dtype: str = option(
        "auto",
        help="number format of the KV cache; auto is bfloat16, int8 has a scale for each token and head",
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
    )
    kv_offload_bytes: int = option(
        0,
        help="size of a tier below the KV cache, which keeps blocks that it evicts and swaps out; 0: no such tier",
        unit="bytes",
        at_least=0,
    )
    kv_offload_path: str | None = option(
        None,
        help="folder for that tier: it survives a restart of the same model. One engine at a time may use it",
        none_means="it is in main memory",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.kv_offload_path is not None and not self.kv_offload_bytes:
            raise ConfigError("kv_offload_path needs kv_offload_bytes: how much may be kept there")
        if self.kv_offload_path is not None and self.prefix_caching_hash_algo == "xxh3_128":
            raise ConfigError(
                "kv_offload_path needs a prefix_caching_hash_algo without collisions, such as sha256: after a restart "
                "the keys alone say what came before a block"
            )
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("num_blocks and kv_cache_memory_bytes both size the KV cache: give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How a step is filled."""

    max_num_seqs: int = option(64, help="choices running in one step", at_least=1, at_most=65536)
    max_num_batched_tokens: int = option(
        2048, help="tokens computed in one step, over all choices", unit="tokens", at_least=1, at_most=2**24
    )
    max_num_partial_prefills: int = option(
        1, help="requests that may be in the middle of a chunked prefill at once", at_least=1, at_most=65536
    )
    long_prefill_token_threshold: int = option(
        0, help="a prompt chunk is never longer than this in one step; 0: no such limit", unit="tokens", at_least=0
    )
    prefill_tokens_beside_decodes: int | None = option(
        None,
        help="of prompts, in a step whose decodes wait for that; more with many decodes, or long waits; 0: what fits",
        unit="tokens",
        at_least=0,
        none_means="what keeps the machine busy (CPU: 64); 0 offline, and with slo_itl_ms, which says it instead",
    )
    block_manager: str = option(
        "v2",
        help="room that a newcomer must find: v1, for its first chunk; v2, for its prompt and its expected answer",
        choices=("v1", "v2"),
    )
    speculative_config: str | None = option(
        None,
        help="guess ahead by prompt lookup, without a change in any token, as JSON: "
        '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
        none_means="nothing is guessed",
        check=checks.speculative,
    )
    scheduling_policy: str = option(
        "fcfs", help="who goes first; fair: equal shares for tenants", choices=("fcfs", "priority", "fair")
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How much may wait for a server's engine. What is beyond is refused at once with a time to come back after."""

    max_num_queued_reqs: int = option(
        1024,
        help="requests that may wait beyond those that could start at once; 0: no such limit",
        at_least=0,
    )
    max_num_queued_tokens: int = option(
        2**21,
        help="prompts and expected answers that may wait beyond what fits into free blocks; 0: no such limit",
        unit="tokens",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloConfig:
    """Latency objectives of a server: with one, steps are kept shorter than the limits allow, where they must be."""

    slo_itl_ms: float | None = option(
        None,
        help="99 of 100 inter-token latencies are to be at most this: steps get fewer tokens, then fewer choices run",
        unit="milliseconds",
        above=0,
        at_most=3_600_000,
        none_means="no such objective: steps are as long as the limits allow",
    )
    slo_ttft_ms: float | None = option(
        None,
        help="99 of 100 first tokens are to come within this: where they are late, steps get as many tokens as "
        "slo_itl_ms allows; without that, it is only watched",
        unit="milliseconds",
        above=0,
        at_most=3_600_000,
        none_means="no such objective",
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What computes, and on how much of the machine."""

    backend: str = option(
        "cpu", help="cpu: native kernels; reference: numpy, slow, exact", choices=("cpu", "reference")
    )
    isa: str | None = option(
        None, help="force one set of kernels; `octavo doctor` lists them", none_means="the best that the machine runs"
    )
    num_threads: int | None = option(
        None,
        help="threads that compute",
        at_least=1,
        at_most=1024,
        none_means="the CPUs that affinity and the cgroup quota allow",
    )
    audit: bool = option(
        False, help="check the laws of the allocator and the scheduler whenever nothing runs; what is broken is logged"
    )
    crash_dump_dir: str | None = option(
        None,
        help="folder for the scheduler's records, for `octavo replay`; no text, token id or name is in them; off: none",
        none_means="`crashes` in the cache folder",
    )
    fault: str | None = option(
        None,
        help="test hook: prefill-error, decode-error@N, engine-death@N, engine-freeze@N, slow-load=SECONDS",
        none_means="nothing goes wrong on purpose",
        check=checks.fault,
        flag=False,
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the HTTP server listens, and who may use it."""

    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(8000, help="TCP port to listen on; 0 lets the system choose", at_least=0, at_most=65535)
    grpc: bool = option(
        False, help="answer the standard health checks over gRPC too, on --grpc-port (pip install 'octavo[grpc]')"
    )
    grpc_port: int = option(50051, help="TCP port of --grpc; 0 lets the system choose", at_least=0, at_most=65535)
    api_key: tuple[str, ...] = option(
        (), help="keys that clients must send one of; none: no key is asked for", secret=True, check=checks.keys
    )
    tenants: str | None = option(
        None,
        help="YAML file of tenants: keys, quotas, priorities, whose cache; SIGHUP reads it again",
        none_means="all requests are one tenant's",
    )
    allowed_origins: tuple[str, ...] = option(
        (), help="web origins that browsers may call from (CORS), or *", check=checks.origins
    )
    strict: bool = option(
        False, help="refuse unknown fields, and a max_tokens for which the context has no room, instead of saying so"
    )
    tool_call_parser: str = option(
        "auto",
        help="the form in which the model writes tool calls; auto: as its chat template says",
        choices=("auto", "hermes", "llama3_json", "mistral", "pythonic"),
    )
    enable_auto_tool_choice: bool = option(
        True, help="let the model choose whether to call a tool; without it, only none, required and named are allowed"
    )
    root_path: str = option("", help="path under which a proxy shows this server", check=checks.root_path)
    uvicorn_log_level: str = option(
        "info",
        help="least severe messages of the HTTP server that are logged",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )
    request_timeout: float | None = option(
        None,
        help="how long a request may take from its head to the end of its answer; then it is cancelled with a 504",
        unit="seconds",
        above=0,
        at_most=86400,
        none_means="as long as its client waits",
    )
    header_timeout: float = option(
        20.0, help="how long a client may take to send a request's head", unit="seconds", above=0, at_most=3600
    )
    body_timeout: float = option(
        30.0,
        help="how long a client may take to send a body; each KiB of it that has come adds a second",
        unit="seconds",
        above=0,
        at_most=3600,
    )
    keep_alive_timeout: float = option(
        75.0,
        help="how long a connection may stay open without a request: longer than a proxy's, so that the proxy closes",
        unit="seconds",
        above=0,
        at_most=86400,
    )
    on_engine_failure: str = option(
        "exit",
        help="where the engine process dies: exit with an error, for whoever watches the server; or start another one",
        choices=("exit", "restart"),
    )
    shutdown_delay: float = option(
        0.0,
        help="how long new requests are still taken after SIGTERM, while readiness already says no: as long as "
        "balancers need to notice",
        unit="seconds",
        at_least=0,
        at_most=3600,
    )
    shutdown_timeout: float = option(
        30.0,
        help="how long running requests may go on once no new ones are taken",
        unit="seconds",
        at_least=0,
        at_most=86400,
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.grpc and self.grpc_port == self.port != 0:
            raise ConfigError(f"port and grpc_port are both {self.port}: HTTP and gRPC need one each")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """How much one HTTP request may bring along. What is above a limit is refused before any work is done for it."""

    max_body_bytes: int = option(8 << 20, help="length of a request's body", unit="bytes", at_least=1, at_most=1 << 30)
    max_prompts: int = option(2048, help="prompts in one request", at_least=1, at_most=2**20)
    max_choices: int = option(4096, help="choices in one answer: prompts times n", at_least=1, at_most=2**20)
    max_messages: int = option(10_000, help="messages in one conversation", at_least=1, at_most=2**20)
    max_stop_strings: int = option(64, help="stop strings in one request", at_least=0, at_most=1024)
    max_bad_words: int = option(128, help="bad words in one request", at_least=0, at_most=1024)
    max_logit_bias: int | None = option(
        None, help="entries of logit_bias in one request", at_least=0, none_means="as many as the vocabulary has tokens"
    )
    max_schema_length: int = option(
        2**17,
        help="a schema, expression or grammar of a structured output, or all choices together",
        unit="characters",
        at_least=1,
        at_most=2**17,
    )
    max_schema_depth: int = option(
        64, help="arrays and objects inside each other in such a schema", at_least=1, at_most=64
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """What is logged and traced, and how."""

    log_format: str = option("text", help="text: lines for people; json: an object on each line", choices=FORMATS)
    log_level: str | None = option(
        None,
        help="least severe lines that are logged",
        choices=tuple(LEVELS),
        none_means="info for servers, else warning",
    )
    enable_log_requests: bool = option(False, help="log each request that generates, with its parameters")
    max_log_len: int = option(
        0,
        help="so much of a prompt is logged by --enable-log-requests; 0: nothing of it, and no text of any parameter",
        unit="characters",
        at_least=0,
    )
    disable_access_log_for_endpoints: tuple[str, ...] = option(
        ("/health", "/health/ready", "/metrics", "/octavo/v1/state"),
        help="paths whose requests are logged at level debug only, for what asks every few seconds",
    )

    otlp_traces_endpoint: str | None = option(
        None,
        help="collector of OpenTelemetry traces, such as http://127.0.0.1:4317; for http/protobuf with its path, "
        "as http://127.0.0.1:4318/v1/traces. Needs octavo[otel]",
        none_means="no traces",
        check=checks.endpoint,
    )
    otlp_traces_protocol: str = option("grpc", help="how traces are sent", choices=("grpc", "http/protobuf"))
    otlp_traces_sample_ratio: float = option(
        1.0,
        help="share of requests that are traced, of those whose traceparent does not say",
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one replica. JSON-able: see `octavo.config.wire`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the tree, with everything about it."""

    section: str
    name: str
    kind: type
    """bool, int, float, str, or tuple (of strings)."""
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"


@cache
def settings() -> Mapping[str, Setting]:
    """All leaves by name, in the order of the tree. Names are unique over all sections."""
    sections = get_type_hints(Config)
    found = {item.name: item for section, kind in sections.items() for item in section_settings(section, kind)}
    return MappingProxyType(found)


@cache
def section_settings(section: str, kind: type) -> tuple[Setting, ...]:
    """The leaves of one section class."""
    hints = get_type_hints(kind)
    return tuple(_setting(section, item.name, hints[item.name], item.default, item.metadata) for item in fields(kind))


def _setting(section: str, name: str, hint: Any, default: Any, metadata: Mapping[Any, Any]) -> Setting:
    optional = NoneType in get_args(hint)
    bare = next(arg for arg in get_args(hint) if arg is not NoneType) if optional else hint
    kind = tuple if getattr(bare, "__origin__", None) is tuple else bare
    return Setting(section, name, kind, optional, default, metadata["option"])


def check_section(section: Any) -> None:
    """Raises ConfigError for the first field of `section` whose value is not allowed."""
    for setting in section_settings("", section.__class__):
        problem = check_value(setting, getattr(section, setting.name))
        if problem:
            raise ConfigError(problem)


def check_value(setting: Setting, value: Any) -> str | None:
    """What is wrong with `value`, as a whole sentence; None where nothing is."""
    if value is None and setting.optional:
        return None
    about = setting.option
    if _has_type(setting.kind, value) and _in_range(about, value):
        problem = about.check(value) if about.check else None
        return problem and f"{setting.name} is {_shown(about, value)}: {problem}"
    return f"{setting.name} must be {describe(setting)}, got {_shown(about, value)}"


def _shown(about: Option, value: Any) -> str:
    return "***" if about.secret else repr(value)


def _has_type(kind: type, value: Any) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in cast(Iterable[Any], value))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _in_range(about: Option, value: Any) -> bool:
    return (
        (not about.choices or value in about.choices)
        and (not about.allowed or value in about.allowed)
        and (about.at_least is None or value >= about.at_least)
        and (about.at_most is None or value <= about.at_most)
        and (about.above is None or value > about.above)
    )


_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list of texts"}


def describe(setting: Setting) -> str:
    """What values are allowed, in words: `a whole number from 0 up to 65535`."""
    about = setting.option
    listed = about.choices or tuple(map(str, about.allowed))
    words = f"{', '.join(listed[:-1])} or {listed[-1]}" if listed else _bounds(_NOUNS[setting.kind], about)
    return words + (" (or auto)" if setting.optional else "")


def _bounds(noun: str, about: Option) -> str:
    limits = (("above", about.above), ("from", about.at_least), ("up to", about.at_most))
    return " ".join([noun, *(f"{word} {limit}" for word, limit in limits if limit is not None)])
