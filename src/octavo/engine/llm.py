"""The offline engine: prompts in, outputs out, in this process, in the shape of vLLM's LLM."""

import contextlib
import operator
import random
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from octavo.core.events import Event, Refused
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams, StructuredOutput, check_token_ids
from octavo.core.types import Pooling, RequestId
from octavo.engine.beam_search import BeamSearchOutput, BeamSearchParams, beams_of
from octavo.engine.clock import now
from octavo.engine.embedding import EmbeddingGathering, EmbeddingRequestOutput, PoolingParams, form_of
from octavo.engine.loop import EngineLoop, Order, Replica, Withdraw
from octavo.engine.outputs import Gathering, RequestOutput
from octavo.engine.process import SETTLE_S

if TYPE_CHECKING:  # an engine process has this module, but no text
    from octavo.config.pooler import Pooler
    from octavo.text.chat import ChatTemplate
    from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping with `prompt` or `prompt_token_ids`."""
Messages = Sequence[Mapping[str, Any]]
P = TypeVar("P")
Seen = Callable[[int], None]
"""Told how many more requests are over."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt, tokenised."""

    text: str | None
    token_ids: tuple[int, ...]


class OfflineEngine:
    """Generates for lists of prompts, driving scheduler and backend directly. Calls from several threads take turns."""

    def __init__(
        self,
        replica: Replica,
        tokenizer: "Tokenizer",
        template: "ChatTemplate | None",
        seed: int | None,
        pooler: "Pooler",
    ) -> None:
        from octavo.text.trial import Trial

        self._replica = replica
        self._tokenizer = tokenizer
        self._template = template
        self._pooler = pooler
        self._random = random.Random(seed)
        self._loop = EngineLoop(replica)
        self._count = 0
        self._turn = threading.Lock()
        self._closed = False
        self._trial = Trial()
        self._context = replica.facts.capacity.max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continues each prompt; the outputs are in the order of the prompts.

        One SamplingParams for all prompts, or one for each. Raises ValueError for a prompt or parameter that can never
        be served; then nothing is generated. Raises RuntimeError once this is closed.
        """
        self._check_open()
        texts = [self._tokenized(prompt) for prompt in _listed(prompts)]
        return self._run(texts, _matched(sampling_params, len(texts), SamplingParams, "sampling"), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers each conversation; as `generate` otherwise. `messages` is one conversation, or a list of them."""
        from octavo.text.chat import encode_chat

        self._check_open()
        template = self._chosen_template(chat_template)
        variables: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }

        def tokenized(one: Messages) -> _Text:
            ids = encode_chat(self._tokenizer, template, one, self._context, **variables)
            return _Text(template.render(one, **variables), tuple(ids))

        texts = [tokenized(one) for one in _conversations(messages)]
        return self._run(texts, _matched(sampling_params, len(texts), SamplingParams, "sampling"), use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of each prompt, best first; as `generate` otherwise."""
        outputs = self.generate(prompts, params.sampling_params(), use_tqdm=use_tqdm)
        return [beams_of(output, params, self._tokenizer) for output in outputs]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each prompt: `outputs[i].outputs.embedding`. As `generate` otherwise.

        What is not in `pooling_params` is as the setting `pooler_config` says.
        """
        self._check_open()
        texts = [self._tokenized(prompt) for prompt in _listed(prompts)]
        asked = _matched(pooling_params, len(texts), PoolingParams, "pooling")
        size = self._replica.facts.capacity.hidden_size
        forms = [form_of(each, self._pooler, size) for each in asked]
        with self._turn:
            self._check_open()
            requests = [self._embedding(text) for text in texts]
            gatherings = list(map(EmbeddingGathering, requests, forms))
            self._drive(requests, gatherings, use_tqdm)
        return [gathering.output for gathering in gatherings]

    def get_tokenizer(self) -> "Tokenizer":
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached blocks, after what other threads generate. False, and no change, where some are held."""
        with self._turn:
            return self._replica.scheduler.reset_prefix_cache(now()) is not None

    def close(self) -> None:
        """Gives back memory and threads, after what other threads generate; nothing can be generated after that."""
        with self._turn:
            if not self._closed:
                self._closed = True
                self._loop.settle(SETTLE_S)
                self._replica.backend.close()
                self._trial.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM is closed")

    def __enter__(self) -> "OfflineEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- steps of a run ----------------------------------------------------------------------------------------------

    def _resolved(self, params: SamplingParams) -> SamplingParams:
        """Raises ParameterError for a token id outside the vocabulary."""
        from octavo.text.bad_words import resolved

        check_token_ids(params, self._replica.facts.capacity.vocab_size)
        return resolved(params, self._tokenizer)

    def _run(self, texts: Sequence[_Text], params: Sequence[SamplingParams], use_tqdm: bool) -> list[RequestOutput]:
        params = [self._resolved(one) for one in params]
        self._try_structures({one.structured_outputs for one in params if one.structured_outputs is not None})
        with self._turn:
            self._check_open()
            requests = [self._request(text, one) for text, one in zip(texts, params, strict=True)]
            gatherings = [
                Gathering(request, text.text, self._tokenizer) for request, text in zip(requests, texts, strict=True)
            ]
            self._drive(requests, gatherings, use_tqdm)
        return [gathering.output for gathering in gatherings]

    def _try_structures(self, outputs: set[StructuredOutput]) -> None:
        """Raises ValueError for a structured output that is none, or takes too much to compile."""
        for output in outputs:
            try:
                self._trial.check(output)
            except ValueError as error:
                raise ValueError(f"structured_outputs: {error}") from None

    def _request(self, text: _Text, params: SamplingParams) -> Request:
        self._count += 1
        seed = self._random.getrandbits(64) if params.seed is None else params.seed % 2**64
        return Request(
            request_id=str(self._count - 1), prompt=text.token_ids, params=params, seed=seed, arrival_s=now()
        )

    def _embedding(self, text: _Text) -> Request:
        self._count += 1
        pooling = Pooling(self._pooler.pooling_type)
        return Request(request_id=str(self._count - 1), prompt=text.token_ids, pooling=pooling, arrival_s=now())

    def _drive(self, requests: Sequence[Request], gatherings: Sequence["_Gathers"], use_tqdm: bool) -> None:
        with _progress(len(requests)) if use_tqdm else contextlib.nullcontext(_ignore) as seen:
            batch = _Batch(requests, gatherings, seen)
            try:
                self._loop.run(batch)
            finally:
                for request_id in batch.unfinished:
                    self._replica.scheduler.cancel(request_id, now())

    def _tokenized(self, prompt: Prompt) -> _Text:
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, parse_special=True, at_most=self._context)
            return _Text(prompt, tuple(ids))
        if not isinstance(prompt, Mapping):
            return _Text(None, _checked_ids(prompt))
        if prompt.get("prompt_token_ids") is not None:
            return _Text(prompt.get("prompt"), _checked_ids(prompt["prompt_token_ids"]))
        if isinstance(prompt.get("prompt"), str):
            return self._tokenized(prompt["prompt"])
        raise ValueError(f"a prompt mapping must have 'prompt' or 'prompt_token_ids', got {reprlib.repr(dict(prompt))}")

    def _chosen_template(self, source: str | None) -> "ChatTemplate":
        from octavo.text.chat import ChatTemplate

        if source is not None:
            names = {} if self._template is None else self._template.special_tokens
            return ChatTemplate(source, names)
        if self._template is None:
            raise ValueError("this model has no chat template: give chat_template, or use generate()")
        return self._template


class _Gathers(Protocol):
    """Takes the events of one request."""

    @property
    def over(self) -> bool: ...

    def stopped_here(self) -> list[int]: ...

    def take(self, events: Sequence[Event]) -> None: ...


class _Batch:
    """The port of one run: its orders are the requests, then a withdrawal for each choice that a stop string ended."""

    def __init__(self, requests: Sequence[Request], gatherings: Sequence[_Gathers], seen: Seen) -> None:
        self._orders: list[Order] = list(requests)
        self._live: dict[RequestId, _Gathers] = {
            request.request_id: gathering for request, gathering in zip(requests, gatherings, strict=True)
        }
        self._seen = seen

    @property
    def unfinished(self) -> Sequence[RequestId]:
        return tuple(self._live)

    def receive(self, *, idle: bool) -> Sequence[Order] | None:
        if not self._live:
            return None
        orders, self._orders = self._orders, []
        return orders

    def publish(self, events: Sequence[Event]) -> None:
        of_request: dict[RequestId, list[Event]] = {}
        for event in events:
            request_id = getattr(event, "request_id", None)
            if request_id in self._live:
                of_request.setdefault(request_id, []).append(event)
        for request_id, own in of_request.items():
            self._take(request_id, own)

    def _take(self, request_id: RequestId, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Refused):
                raise ValueError(event.message)
        self._live[request_id].take(events)
        self._settle(request_id, self._live[request_id])

    def _settle(self, request_id: RequestId, gathering: _Gathers) -> None:
        if gathering.over:
            del self._live[request_id]
            self._seen(1)
        else:
            self._orders += [Withdraw(request_id, choice) for choice in gathering.stopped_here()]


def _ignore(_: int) -> None:
    return


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Seen]:
    """A progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    )
    with bar:
        task = bar.add_task("prompts", total=total)
        yield lambda more: bar.advance(task, more)


_SHAPES = "text, a list of token ids, or a mapping with 'prompt' or 'prompt_token_ids'"


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list. A non-empty list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = _items(prompts, f"a prompt is {_SHAPES}")
    return [items] if items and all(map(_is_integer, items)) else items


def _conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    items = _items(messages, "messages are one list of objects with 'role' and 'content', or a list of such lists")
    return [items] if items and isinstance(items[0], Mapping) else items


def _items(value: Any, meant: str) -> list[Any]:
    """What is in a list, an array, a generator. Raises ValueError with what is `meant` for all else, and for bytes."""
    wrong = ValueError(f"{meant}, got {type(value).__name__}")
    if isinstance(value, bytes | bytearray | memoryview):
        raise wrong
    try:
        items = iter(value)
    except TypeError:
        raise wrong from None
    return list(items)


def _checked_ids(ids: Any) -> tuple[int, ...]:
    items = _items(ids, f"a prompt is {_SHAPES}")
    wrong = [item for item in items if not _is_integer(item)]
    if wrong:
        raise ValueError(f"a prompt is {_SHAPES}; one holds {reprlib.repr(wrong[0])}")
    return tuple(map(operator.index, items))


def _is_integer(value: Any) -> bool:
    """Is it an integer of any kind, numpy's too? Truth values are none."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _matched(params: Any, count: int, kind: type[P], what: str) -> list[P]:
    """Parameters for each prompt, where there are some for all, for each, or none: then `kind`'s defaults."""
    if params is None or isinstance(params, kind):
        return [params or kind()] * count
    meant = f"{what}_params is a {kind.__name__}, or a list with one for each prompt"
    items: list[Any] = [params] if isinstance(params, Mapping | str) else _items(params, meant)
    wrong = [item for item in items if not isinstance(item, kind)]
    if wrong:
        raise ValueError(f"{meant}, got {reprlib.repr(wrong[0])}")
    if len(items) != count:
        raise ValueError(f"{len(items)} {what} parameters for {count} prompts: give one for all, or one for each")
    return items
