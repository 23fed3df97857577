"""One conversation partner in this process: what `run`, `chat` and `doctor` have in common.

The engine runs in a thread behind the same client as everywhere; answers are cut into text by the same code.
"""

import argparse
import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

from octavo.config import Config
from octavo.core.events import Refused
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.client import EngineClient, EngineFacts
from octavo.engine.outputs import Gathering, RequestOutput
from octavo.text.chat import ChatTemplate, TemplateError, encode_chat
from octavo.text.tokenizer import Tokenizer, TooLong
from octavo.tools.pull import fetch
from octavo.tools.terminal import Show, ignore, status_line

POLL_S = 0.1
"""How often the line that says what a loading engine does is renewed."""
DEFAULTS: dict[str, Any] = {"max_tokens": 1024}
"""Long enough for an answer; short enough for a model that never ends one."""

Message = dict[str, str]


class Scored(NamedTuple):
    """A token of a text, in its place."""

    logprob: float
    best: int
    """The most likely token there."""


class AnswerRefused(ValueError):
    """The engine cannot serve this prompt or these parameters."""


@contextmanager
def _refusing() -> Iterator[None]:
    """What a template or the length of a text says against it, as AnswerRefused."""
    try:
        yield
    except (TemplateError, TooLong) as error:
        raise AnswerRefused(str(error)) from error


def sampling_params(options: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """From the flags that were given, then `defaults`. Raises ParameterError."""
    given = {item.name: getattr(options, item.name, None) for item in fields(SamplingParams)}
    return SamplingParams(**DEFAULTS | defaults | {name: value for name, value in given.items() if value is not None})


class Partner:
    """Answers conversations. Use as a context manager: it owns an engine, and the event loop that listens to it."""

    def __init__(
        self, client: EngineClient, tokenizer: Tokenizer, template: ChatTemplate | None, seed: int | None = None
    ) -> None:
        """`seed` begins the stream from which requests without a seed of their own draw one."""
        self._client = client
        self._tokenizer = tokenizer
        self._template = template
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._runner = asyncio.Runner()
        self._context: int | None = None

    def __enter__(self) -> "Partner":
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def wait_ready(self, show: Show = ignore) -> EngineFacts:
        """Waits for the engine; `show` is told what it does meanwhile. Raises CannotStart, EngineDead."""
        facts = self._runner.run(_ready(self._client, show))
        self._context = facts.capacity.max_model_len
        return facts

    def answer(self, messages: Sequence[Message], params: SamplingParams, show: Show) -> RequestOutput:
        """The answer to a conversation; `show` gets it piece by piece. Ctrl-C ends the answer, not the program.

        Raises AnswerRefused, GenerationError, EngineDead.
        """
        if self._template is None:
            raise AnswerRefused("this model has no chat template: give one with --chat-template, or use `run --raw`")
        with _refusing():
            ids = encode_chat(self._tokenizer, self._template, messages, self._context)
        return self._generate(ids, params, show)

    def complete(self, text: str, params: SamplingParams, show: Show) -> RequestOutput:
        """The text's continuation; as `answer` otherwise."""
        with _refusing():
            ids = self._tokenizer.encode(text, at_most=self._context)
        return self._generate(ids, params, show)

    def encode(self, text: str) -> list[int]:
        """The ids of a text of any length."""
        return self._tokenizer.encode(text)

    def score(self, ids: Sequence[int]) -> list[Scored]:
        """Each id but the first, given those before it. Raises as `answer` does."""
        output = self._generate(ids, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1), ignore)
        scored = zip(ids, output.prompt_logprobs or (), strict=True)
        return [Scored(places[token].logprob, list(places)[-1]) for token, places in scored if places is not None]

    def _generate(self, prompt: Sequence[int], params: SamplingParams, show: Show) -> RequestOutput:
        seed = self._random.getrandbits(64) if params.seed is None else params.seed % 2**64
        request = Request(request_id=f"local-{next(self._numbers)}", prompt=tuple(prompt), params=params, seed=seed)
        return self._runner.run(_stream(self._client, request, Gathering(request, None, self._tokenizer), show))


async def _ready(client: EngineClient, show: Show) -> EngineFacts:
    waiting = asyncio.ensure_future(client.wait_ready())
    try:
        while not waiting.done():
            show(client.progress)
            await asyncio.wait([waiting], timeout=POLL_S)
        return await waiting
    finally:
        waiting.cancel()  # where Ctrl-C ends the wait, nobody is left to hear that the engine was closed


async def _stream(client: EngineClient, request: Request, gathering: Gathering, show: Show) -> RequestOutput:
    """Shows new text as it comes. Where it is cancelled, what came so far is the output, with the reason `abort`."""
    choice = gathering.output.outputs[0]
    shown = 0
    try:
        async for events in client.submit(request):
            if isinstance(events[0], Refused):
                raise AnswerRefused(events[0].message)
            gathering.take(events)
            if len(choice.text) > shown:
                show(choice.text[shown:])
                shown = len(choice.text)
            if gathering.stopped:
                break
            if _cancelled():
                await asyncio.sleep(0)  # raises: not a piece more, whatever has come already
    except asyncio.CancelledError:
        choice.finish_reason = "abort"
    client.cancel(request.request_id)  # harmless where it is over
    return gathering.output


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def open_partner(config: Config) -> Iterator[tuple[Partner, EngineFacts]]:
    """A partner that is ready, with the configured model, which is fetched where it is missing."""
    from octavo import boot
    from octavo.engine.launch import InProcessClient

    fetch(config.model.model)
    checkpoint = boot.open_model(config)
    tokenizer, template = boot.load_text(config, checkpoint)
    client = InProcessClient(lambda _, report: boot.build_replica(config, checkpoint, report))
    with Partner(client, tokenizer, template, config.model.seed) as partner:
        with status_line() as show:
            facts = partner.wait_ready(show)
        yield partner, facts
