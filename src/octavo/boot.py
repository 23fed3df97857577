"""The wiring: the only place that names concrete backends, loaders and servers, and puts an engine together.

Imports are where they are used: an engine process needs no server, and `import octavo` needs neither.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config.checks import parse_fault
from octavo.config.extras import load_extra
from octavo.config.logs import say
from octavo.config.pooler import read_pooler
from octavo.config.schema import Config, ConfigError, QueueConfig, settings
from octavo.engine.llm import OfflineEngine

if TYPE_CHECKING:
    import socket

    from octavo.config.sources import Origin
    from octavo.core.hashing import BlockHash
    from octavo.core.ports import Backend, Guide
    from octavo.core.structured import StructuredOutput
    from octavo.core.tiers import Tier
    from octavo.engine.client import EngineClient, EngineFacts
    from octavo.engine.compilations import Compile
    from octavo.engine.dumps import Dumps
    from octavo.engine.launch import ProcessClient
    from octavo.engine.loop import Replica
    from octavo.engine.memory import MemoryPlan
    from octavo.engine.offload import Offload
    from octavo.models.checkpoint import Checkpoint, Vocabulary
    from octavo.server.app import App
    from octavo.server.service import Service
    from octavo.text.chat import ChatTemplate
    from octavo.text.guide import Compiler
    from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Report = Callable[[str], None]


# -- models ----------------------------------------------------------------------------------------------------------


def locate_model(config: Config) -> Path:
    """The local file or folder of the configured model, downloaded where it must be. Raises LoadError."""
    from octavo.loaders import hub

    return hub.default_model_path() if config.model.model is None else hub.resolve(config.model.model)


def with_model(config: Config, path: Path) -> Config:
    """The same configuration, with the model as a path."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(path)))


def load_text(config: Config, checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and chat template that the configuration asks for, or else the checkpoint's own."""
    from octavo.text.chat import ChatTemplate
    from octavo.text.tokenizer import build_tokenizer

    vocabulary = _vocabulary(config, checkpoint)
    tokenizer = build_tokenizer(vocabulary, trusts_texts=config.model.allow_special_tokens_in_text)
    source = vocabulary.chat_template if config.model.chat_template is None else _template(config.model.chat_template)
    return tokenizer, None if source is None else ChatTemplate(source, tokenizer.special_tokens)


def _vocabulary(config: Config, checkpoint: Checkpoint) -> Vocabulary:
    from octavo.loaders import open_checkpoint

    other = config.model.tokenizer
    return checkpoint.vocabulary if other is None else open_checkpoint(other).vocabulary


def _template(given: str) -> str:
    """The template in a file, or `given` itself where it looks like one."""
    if "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the chat template {given}: {error}") from error


# -- engines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model in memory, before its cache is sized."""

    weight_bytes: int
    kv_bytes_per_token: int
    """In a block, which has the layers of one KV group."""
    isa: str
    num_threads: int
    weight_format: str
    kv_cache_dtype: str
    report: tuple[str, ...]
    backend: Callable[[MemoryPlan], Backend]


def _load_cpu(config: Config, checkpoint: Checkpoint, report: Report) -> _Loaded:
    from octavo.backends.cpu import CpuBackend, CpuModel

    kv_cache_dtype = config.cache.kv_cache_dtype
    model = CpuModel.load(
        checkpoint,
        dtype=config.model.dtype,
        quantization=config.model.quantization,
        isa=config.engine.isa,
        num_threads=config.engine.num_threads,
        progress=report,
    )
    return _Loaded(
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token(kv_cache_dtype),
        isa=model.isa,
        num_threads=model.num_threads,
        weight_format=model.weight_format,
        kv_cache_dtype="bfloat16" if kv_cache_dtype == "auto" else kv_cache_dtype,
        report=model.report,
        backend=lambda plan: CpuBackend(
            model,
            num_blocks=plan.num_blocks,
            block_size=config.cache.block_size,
            max_model_len=plan.max_model_len,
            kv_cache_dtype=kv_cache_dtype,
        ),
    )


def _load_reference(config: Config, checkpoint: Checkpoint, report: Report) -> _Loaded:
    from octavo.backends.reference import ReferenceBackend
    from octavo.backends.reference.kv import kv_bytes_per_token
    from octavo.loaders.dequant import dequantize

    _only_float32(config)
    spec, kv_cache_dtype = checkpoint.spec, config.cache.kv_cache_dtype
    names = checkpoint.tensors.names()
    elements = sum(math.prod(checkpoint.tensors.info(name).shape) for name in names)
    return _Loaded(
        weight_bytes=4 * elements,
        kv_bytes_per_token=kv_bytes_per_token(spec, kv_cache_dtype),
        isa="numpy",
        num_threads=1,
        weight_format=checkpoint.format_as("float32"),
        kv_cache_dtype="float32" if kv_cache_dtype == "auto" else kv_cache_dtype,
        report=("backend: reference (numpy, float32, slow)",),
        backend=lambda plan: ReferenceBackend(
            checkpoint,
            num_blocks=plan.num_blocks,
            block_size=config.cache.block_size,
            max_model_len=plan.max_model_len,
            dequantize=dequantize,
            kv_cache_dtype=kv_cache_dtype,
        ),
    )


def _only_float32(config: Config) -> None:
    for name, value in (("dtype", config.model.dtype), ("quantization", config.model.quantization)):
        if value not in ("auto", "float32", None):
            raise ConfigError(f"{name} is {value}, but the reference backend computes in float32 only")
    for name, value in (("isa", config.engine.isa), ("num_threads", config.engine.num_threads)):
        if value is not None:
            raise ConfigError(f"{name} is {value}, but the reference backend has no such choice")


_BACKENDS: dict[str, Callable[[Config, Checkpoint, Report], _Loaded]] = {
    "cpu": _load_cpu,
    "reference": _load_reference,
}


def build_replica(config: Config, checkpoint: Checkpoint, report: Report) -> Replica:
    """Loads the model, sizes its cache, and wires backend and scheduler. Raises ValueError with words for people."""
    from octavo.config.machine import available_memory_bytes
    from octavo.control.governor import governor_for
    from octavo.core.scheduler import Scheduler
    from octavo.engine.faults import delay_load, with_fault
    from octavo.engine.limits import limits_of
    from octavo.engine.loop import Replica
    from octavo.engine.recorder import RecordedScheduler

    _check_pooler(config, checkpoint)
    fault = parse_fault(config.engine.fault) if config.engine.fault else None
    block_hash = block_hash_of(config)
    memory = available_memory_bytes()  # before the weights take theirs
    report("loading the weights")
    delay_load(fault)
    loaded = _BACKENDS[config.engine.backend](config, checkpoint, report)
    plan = _memory_plan(config, checkpoint, loaded, memory)
    report("reserving the KV cache")
    backend = _with_cache(loaded, plan)
    limits = limits_of(config, checkpoint, plan, backend.capacity().busy_tokens)
    facts = _facts(config, checkpoint, loaded, plan, backend)
    below = _lower_tier(config, checkpoint, backend, facts) if config.cache.kv_offload_bytes else None
    if below is not None:
        backend, facts = below.backend, _with_tier(facts, below)
    tier = below and below.tier
    dumps = _dumps(config, facts)
    kind = Scheduler if dumps is None else RecordedScheduler
    scheduler = kind(limits, fingerprint=checkpoint.fingerprint, block_hash=block_hash, tier=tier)
    return Replica(
        scheduler,
        with_fault(backend, fault),
        facts,
        compiler_of(_vocabulary(config, checkpoint), checkpoint.spec.vocab_size),
        config.engine.audit,
        below and below.offload,
        dumps,
        governor_for(config.slo, limits),
    )


def _dumps(config: Config, facts: EngineFacts) -> Dumps | None:
    from octavo.config.paths import cache_dir
    from octavo.engine.dumps import Dumps

    place = config.engine.crash_dump_dir
    return None if place == "off" else Dumps(Path(place) if place else cache_dir() / "crashes", facts.fingerprint)


def _check_pooler(config: Config, checkpoint: Checkpoint) -> None:
    """Raises ConfigError where embeddings are to have more dimensions than the model."""
    dimensions, size = read_pooler(config.model.pooler_config).dimensions, checkpoint.spec.hidden_size
    if dimensions is not None and dimensions > size:
        raise ConfigError(f"pooler_config asks for {dimensions} dimensions, but {checkpoint.name} has {size}")


def block_hash_of(config: Config) -> BlockHash:
    """The configured hash of block keys. Raises ConfigError where its package is not installed."""
    from octavo.core.hashing import HASHES, BlockHash

    name = config.cache.prefix_caching_hash_algo
    if name in HASHES:
        return HASHES[name]
    try:
        from xxhash import xxh3_128_digest
    except ImportError as error:
        others = ", ".join(HASHES)
        raise ConfigError(
            f"prefix_caching_hash_algo is {name}, which needs a package that is not installed: "
            f"pip install 'octavo[xxhash]'; or choose one of {others}"
        ) from error
    return BlockHash(xxh3_128_digest)


def compiler_of(vocabulary: Vocabulary, vocab_size: int) -> Compile:
    """Compiles structured outputs for this vocabulary. An engine needs no tokenizer until somebody asks for one."""
    from threading import Lock

    turn, built = Lock(), list["Compiler"]()

    def compile(output: StructuredOutput) -> Guide:
        with turn:
            if not built:
                built.append(_build_compiler(vocabulary, vocab_size))
        return built[0].compile(output)

    return compile


def _build_compiler(vocabulary: Vocabulary, vocab_size: int) -> Compiler:
    from octavo.text.guide import Compiler
    from octavo.text.tokenizer import build_tokenizer

    return Compiler(build_tokenizer(vocabulary), vocab_size)


def _with_cache(loaded: _Loaded, plan: MemoryPlan) -> Backend:
    from octavo.engine.memory import MemoryPlanError

    try:
        return loaded.backend(plan)
    except MemoryError as error:
        raise MemoryPlanError(
            f"{plan.num_blocks:,} KV blocks cannot be allocated: lower num_blocks or kv_cache_memory_bytes"
        ) from error


@dataclass(frozen=True, slots=True)
class _LowerTier:
    """A tier below the KV cache, from the policy down to the files."""

    tier: Tier
    offload: Offload
    backend: Backend
    report: tuple[str, ...]


def _lower_tier(config: Config, checkpoint: Checkpoint, backend: Backend, facts: EngineFacts) -> _LowerTier:
    from octavo.core.ports import BlockMemory
    from octavo.core.tiers import Costs, Tier
    from octavo.engine.blockfiles import BlockFormat, DiskMedium, MemoryMedium
    from octavo.engine.memory import plan_tier
    from octavo.engine.offload import Offload, TieredBackend
    from octavo.models.layer_groups import layer_groups

    cache, capacity = config.cache, facts.capacity
    if layer_groups(checkpoint.spec).windows != (None,):
        raise ConfigError("kv_offload_bytes: blocks of models with a sliding window cannot be kept in a lower tier yet")
    if not isinstance(backend, BlockMemory):
        raise ConfigError(f"kv_offload_bytes: the {config.engine.backend} backend cannot move its blocks")
    context_blocks = -(-capacity.max_model_len // cache.block_size)
    reuses = cache.enable_prefix_caching
    plan = plan_tier(cache.kv_offload_bytes, cache.kv_offload_path, backend.block_bytes, context_blocks, reuses)
    if cache.kv_offload_path is None:
        medium = MemoryMedium()
    else:
        block_format = BlockFormat(_format_of(config, checkpoint, facts), cache.block_size, backend.block_bytes)
        medium = DiskMedium(Path(cache.kv_offload_path), block_format, keep=reuses)
    offload = Offload(medium, backend.block_bytes)
    tier = Tier(plan.limits, Costs(block_bytes=backend.block_bytes), cache.block_size)
    return _LowerTier(tier, offload, TieredBackend(backend, backend, offload), plan.report)


def _with_tier(facts: EngineFacts, below: _LowerTier) -> EngineFacts:
    from octavo.engine.process import SETTLE_S

    settle_s = SETTLE_S if below.tier.limits.persistent else 0.0
    return dataclasses.replace(facts, report=facts.report + below.report, settle_s=settle_s)


def _format_of(config: Config, checkpoint: Checkpoint, facts: EngineFacts) -> bytes:
    """Names all that the bytes of a block depend on, and how its key is made."""
    import hashlib

    names = (facts.fingerprint, checkpoint.fingerprint.hex(), config.engine.backend, config.cache.block_size)
    return hashlib.sha256(repr((*names, config.cache.prefix_caching_hash_algo)).encode()).digest()


def _memory_plan(config: Config, checkpoint: Checkpoint, loaded: _Loaded, memory: tuple[int, str]) -> MemoryPlan:
    from octavo.engine.limits import longest_chunk
    from octavo.engine.memory import Demand, plan_memory
    from octavo.models.layer_groups import layer_groups

    available_bytes, reason = memory
    cache = config.cache
    return plan_memory(
        Demand(
            weight_bytes=loaded.weight_bytes,
            kv_bytes_per_token=loaded.kv_bytes_per_token,
            available_bytes=available_bytes,
            available_reason=reason,
            utilization=cache.gpu_memory_utilization,
            model_len=checkpoint.spec.max_model_len,
            max_model_len=config.model.max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
            block_size=cache.block_size,
            windows=layer_groups(checkpoint.spec).windows,
            longest_chunk=longest_chunk(config),
            num_blocks=cache.num_blocks,
            kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
        )
    )


def _facts(config: Config, checkpoint: Checkpoint, loaded: _Loaded, plan: MemoryPlan, backend: Backend) -> EngineFacts:
    from octavo import __version__
    from octavo.engine.client import EngineFacts
    from octavo.models.layer_groups import layer_groups

    formats = f"{loaded.weight_format}-{loaded.kv_cache_dtype}"
    return EngineFacts(
        model=checkpoint.name,
        fingerprint=f"octavo-{__version__}-{loaded.isa}-{checkpoint.fingerprint.hex()[:8]}-{formats}",
        capacity=backend.capacity(),
        isa=loaded.isa,
        num_threads=loaded.num_threads,
        weight_format=loaded.weight_format,
        kv_cache_dtype=loaded.kv_cache_dtype,
        kv_block_bytes=loaded.kv_bytes_per_token * config.cache.block_size,
        pid=os.getpid(),
        report=(*loaded.report, *layer_groups(checkpoint.spec).report(), *plan.report),
        warnings=plan.warnings,
    )


# -- serving ---------------------------------------------------------------------------------------------------------


def start_engine(config: Config) -> ProcessClient:
    """An engine in a child process, which gets ready to be told what to load. It writes its log as we do."""
    from octavo.engine.launch import ProcessClient

    settled = config.observability
    level = () if settled.log_level is None else ("--log-level", settled.log_level)
    words = (sys.executable, "-m", "octavo", "engine", "--log-format", settled.log_format, *level)
    return ProcessClient(lambda fd: (*words, "--fd", str(fd)))


def engine_main(fd: int) -> int:
    """The whole life of an engine process, whose end of the socket is `fd`. Returns its exit status."""
    from octavo.engine.process import run_child

    for name in _NEEDED_TO_LOAD:
        importlib.import_module(name)  # while the parent finds out what is to be loaded
    return run_child(fd, build_from_setup)


_NEEDED_TO_LOAD = (
    "octavo.backends.cpu",
    "octavo.config.machine",
    "octavo.config.wire",
    "octavo.core.scheduler",
    "octavo.engine.faults",
    "octavo.engine.memory",
    "octavo.loaders.gguf_checkpoint",
)


def build_from_setup(payload: bytes, report: Report) -> Replica:
    """Builds what an encoded configuration with a local model asks for."""
    from octavo.config import wire
    from octavo.loaders import open_checkpoint

    config = wire.decode(payload)
    if config.model.model is None:
        raise ConfigError("an engine process is given the model's path")
    return build_replica(config, open_checkpoint(config.model.model), report)


def serve(config: Config, origins: Mapping[str, Origin] | None = None) -> int:
    """Serves the configured model over HTTP until told to stop; returns the exit status.

    `origins`: where each setting came from, to be shown.

    The child is started first, so that it and the server get ready at the same time; it is told what to load as soon as
    the model has been opened (some 50 ms, in which the child is not ready either) and the port is ours. Raises
    CannotListen, LoadError, TemplateError, ConfigError, and CannotStart for what only the engine can know.
    """
    beside = _beside_http(config)
    client = start_engine(config)
    try:
        from octavo.config import wire
        from octavo.loaders import open_checkpoint
        from octavo.server import lifecycle

        checkpoint = open_checkpoint(locate_model(config))
        with lifecycle.listen(config.server) as sock:
            payload = wire.encode(with_model(config, Path(checkpoint.path)))
            client.setup(payload)
            engine = _watched(config, client, payload)
            app = _build_app(config, origins, engine, checkpoint)
            return lifecycle.run(_serve(app, engine, config, sock, beside))
    finally:
        client.kill()


def _watched(config: Config, first: ProcessClient, payload: bytes) -> EngineClient:
    """The engine as the server holds it: this one alone, or one after the other."""
    if config.server.on_engine_failure == "exit":
        return first
    from octavo.engine.supervisor import Supervisor

    def another() -> ProcessClient:
        client = start_engine(config)
        client.setup(payload)
        return client

    return Supervisor(first, another)


def _build_app(
    config: Config, origins: Mapping[str, Origin] | None, client: EngineClient, checkpoint: Checkpoint
) -> App:
    from octavo.server.app import build_app

    tokenizer, template = load_text(config, checkpoint)
    return build_app(client, tokenizer, template, config, origins)


_Beside = Callable[["Service"], AbstractAsyncContextManager[object]]
"""What else listens while a service is served."""


def _beside_http(config: Config) -> tuple[_Beside, ...]:
    """Health checks over gRPC, and traces, where they are asked for. Raises ConfigError where packages are missing."""
    beside: list[_Beside] = []
    if config.server.grpc:
        beside.append(load_extra("octavo.server.health_grpc", "grpc", "grpc").answering)
    if config.observability.otlp_traces_endpoint is not None:
        beside.append(load_extra("octavo.server.otlp", "otlp_traces_endpoint", "otel").tracing)
    return tuple(beside)


async def _serve(
    app: App, client: EngineClient, config: Config, sock: socket.socket, beside: tuple[_Beside, ...]
) -> int:
    from octavo.server import lifecycle

    try:
        async with AsyncExitStack() as others:
            for each in beside:
                await others.enter_async_context(each(app.service))
            return await lifecycle.serve(app, client, config.server, sock, lambda text: say(text, sys.stdout))
    finally:
        app.service.trials.close()
        await client.close()


# -- offline ---------------------------------------------------------------------------------------------------------

_OFFLINE_SECTIONS = ("model", "cache", "scheduler", "engine")


class LLM(OfflineEngine):
    """A model, ready to generate. The keyword arguments are the settings' names, as in vLLM where vLLM has them.

    Raises TypeError for an unknown argument, ValueError for all else that cannot be: as ConfigError for a value that is
    not allowed, LoadError for a model that cannot be loaded, MemoryPlanError for one that does not fit.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        config = _offline_config(model, options)
        checkpoint = open_model(config)
        tokenizer, template = load_text(config, checkpoint)
        replica = build_replica(config, checkpoint, lambda what: log.info("%s", what))
        for line in replica.facts.report:
            log.info("%s", line)
        for line in replica.facts.warnings:
            log.warning("%s", line)
        super().__init__(replica, tokenizer, template, config.model.seed, read_pooler(config.model.pooler_config))


def _offline_config(model: str | Path | None, options: dict[str, Any]) -> Config:
    from octavo.config.sources import from_keywords
    from octavo.config.values import did_you_mean

    known = [setting.name for setting in settings().values() if setting.section in _OFFLINE_SECTIONS]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise TypeError(f"LLM() got an unexpected keyword argument {unknown!r}{did_you_mean(unknown, known)}")
    given = {name: value for name, value in options.items() if value is not None}
    config = from_keywords(**given) if model is None else from_keywords(model=str(model), **given)
    unlimited = QueueConfig(max_num_queued_reqs=0, max_num_queued_tokens=0)  # whoever calls waits anyway
    scheduler = config.scheduler
    if scheduler.prefill_tokens_beside_decodes is None:
        scheduler = dataclasses.replace(scheduler, prefill_tokens_beside_decodes=0)
    return dataclasses.replace(config, queue=unlimited, scheduler=scheduler)


def open_model(config: Config) -> Checkpoint:
    """The configured model, opened. Raises LoadError."""
    from octavo.loaders import open_checkpoint

    return open_checkpoint(locate_model(config))
