"""What the routes that show a server answer: state, requests and settings. Like `shapes`, for operators and tools."""

from typing import Any, Literal, TypedDict

from octavo.server.telling import BlocksTold, MissTold, WaitTold


class ServerShown(TypedDict):
    """The server: since when it is up, what it is called by clients, and who is in it."""

    version: str
    uptime_s: float
    models: list[str]
    draining: bool
    in_flight: int


class EngineShown(TypedDict):
    """The engine: `progress` says what it does while it starts; what it is, is known once it was ready. That took the
    first one `ready_after_s`, from the server's start."""

    state: Literal["starting", "ready", "dead"]
    progress: str
    heartbeat_age_s: float
    ready_after_s: float | None
    lost: int
    fingerprint: str | None
    isa: str | None
    num_threads: int | None
    weight_format: str | None
    kv_cache_dtype: str | None
    block_size: int | None
    num_blocks: int | None
    max_model_len: int | None
    report: list[str]
    warnings: list[str]


class LimitsShown(TypedDict):
    """What policy works within, as configured."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_partial_prefills: int
    long_prefill_token_threshold: int
    scheduling_policy: str
    block_manager: str
    enable_prefix_caching: bool
    eviction_policy: str
    max_num_queued_reqs: int
    max_num_queued_tokens: int


class LoadShown(TypedDict):
    """How full the engine is: choices that run, wait, or are held; `lacks`: what those who wait lack, of how many."""

    step: int
    running: int
    waiting: int
    held: int
    waiting_tokens: int
    lacks: dict[str, int]
    blocks: BlocksTold
    kv_usage: float


class MapShown(TypedDict):
    """The blocks of the KV cache in order, a character of `legend` for each cell of `blocks_per_cell`."""

    cells: str
    blocks_per_cell: int
    legend: dict[str, str]


class LiveShown(TypedDict):
    """A request to the engine that is not over."""

    id: str
    tenant: str
    state: str
    priority: int
    age_s: float
    choices: int
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int
    generated_tokens: int
    blocks: int
    preemptions: int
    lacks: str
    waited: list[WaitTold]


class Spread(TypedDict):
    """Latencies in seconds, within some 5 %; null where there were none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


class WindowShown(TypedDict):
    """The last seconds: rates and latencies. `queue`, `first_token`, `whole` begin when a request comes to the engine;
    `inter_token` is for each token but the first."""

    seconds: float
    requests_per_s: float
    refused_per_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    steps_per_s: float
    tokens_per_step: float | None
    hit_rate: float | None
    preemptions: int
    queue: Spread
    first_token: Spread
    inter_token: Spread
    whole: Spread


class TotalsShown(TypedDict):
    """Since the server started."""

    finished: dict[str, int]
    refused: dict[str, int]
    prompt_tokens: int
    generated_tokens: int
    cache_queries: int
    cache_hits: int
    missed_tokens: dict[str, int]
    preemptions: dict[str, int]
    tokens_lost: int
    stalls: int
    violations: int


class State(TypedDict):
    """A server at a glance. `load`, `map`, `requests` are from `age_s` ago; null or none while no engine is ready."""

    object: Literal["state"]
    time: float
    seq: int
    server: ServerShown
    engine: EngineShown
    limits: LimitsShown
    age_s: float | None
    load: LoadShown | None
    map: MapShown | None
    requests: list[LiveShown]
    num_requests: int
    window: WindowShown
    totals: TotalsShown


class Moment(TypedDict):
    """Something that happened, `at` seconds after the request came to the engine."""

    at: float
    kind: str
    text: str


class Ended(TypedDict):
    """A choice that is over."""

    choice: int
    reason: str
    generated_tokens: int
    at: float | None
    code: str | None
    message: str | None


class StoryShown(TypedDict):
    """What became of one request to the engine. `omitted`: moments in its middle that are not kept."""

    id: str
    state: str
    tenant: str
    choices: int
    prompt_tokens: int
    cached_tokens: int | None
    miss: MissTold | None
    generated_tokens: int
    preemptions: int
    queue_s: float | None
    first_token_s: float | None
    waited: list[WaitTold]
    ended: list[Ended]
    timeline: list[Moment]
    omitted: int


class RequestShown(TypedDict):
    """What became of a request: of each prompt that it had."""

    object: Literal["request"]
    id: str
    path: str | None
    tenant: str
    x_request_id: str | None
    requests: list[StoryShown]


class SettingShown(TypedDict):
    """A setting; `origin`: where its value came from, where that is known. Secrets are `***`."""

    setting: str
    value: Any
    origin: str | None
    help: str


class DumpShown(TypedDict):
    """The file, on the server's machine."""

    path: str


class Settings(TypedDict):
    """All settings that the server runs with, and what the engine made of them at its start."""

    object: Literal["config"]
    settings: list[SettingShown]
    report: list[str]
