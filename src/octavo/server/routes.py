"""Routes: all that can be asked of a server, by whom it is answered, and what comes back."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.server import caching, documentation, observing, operations, pinning, shapes, state_shapes
from octavo.server.anthropic import messages
from octavo.server.anthropic.schema import CountRequest, MessagesRequest
from octavo.server.anthropic.shapes import Message, MessageEvent, TokenCount
from octavo.server.exchange import Exchange
from octavo.server.exposition import CONTENT_TYPE
from octavo.server.openai import chat, completions, embeddings, models, responses, tokenize
from octavo.server.openai.embedding_schema import EmbeddingRequest
from octavo.server.openai.response_schema import ResponsesRequest
from octavo.server.openai.response_shapes import Response, ResponseEvent
from octavo.server.openai.schema import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    PinRequest,
    PrefixRequest,
    TokenizeRequest,
)
from octavo.server.service import Service
from octavo.server.telling import AnyTold

CHUNKS = "events of the form `data: {...}`, the last one `data: [DONE]`, and comments"
NAMED = "events of the form `event: TYPE` and `data: {...}`, and what keeps a connection that is silent"
Handler = Callable[[Service, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One method of one path. A path that ends in `/` takes all that begin with it. Each is equal to itself alone."""

    method: str
    path: str
    handler: Handler
    answer: Any = str
    """What comes back: one of `shapes`, as JSON; `str`: a text."""
    body: type[Body] | None = None
    names: str = "model"
    """What the rest of such a path is."""
    generates: bool = False
    """It makes the engine work, and so counts as one that runs or waits."""
    events: Any = None
    """What an event is, where the answer may come as a stream of them."""
    framing: str = CHUNKS
    """How such a stream is written, in words."""
    status: int = 200
    media: str = "application/json"
    queries: Mapping[str, str] = field(default_factory=dict[str, str])
    """What its URL may ask for, and what each means."""
    problems: tuple[int, ...] = ()
    """Statuses of 400 or more, beside those that each route like this has: see `openapi`."""

    @property
    def label(self) -> str:
        """The path as documents and metrics write it."""
        return f"{self.path}{{{self.names}}}" if self.path.endswith("/") else self.path


def meant(path: str, known: Collection[str]) -> str | None:
    """Which known path somebody meant who asks at `path`: base URLs lack their /v1, or have it twice, or a slash."""
    words = [word for word in path.split("/") if word]
    ends = {each: each.strip("/").split("/") for each in known}
    found = [each for each, end in ends.items() if words and (words[-len(end) :] == end or end[-len(words) :] == words)]
    return min(found, key=len, default=None)


ROUTES = (
    Route("GET", "/v1/models", models.list_models, shapes.Cards, problems=(503,)),
    Route("GET", "/v1/models/", models.show_model, shapes.Card, problems=(404, 503)),
    Route(
        "POST",
        "/v1/chat/completions",
        chat.chat,
        shapes.ChatAnswer,
        ChatRequest,
        generates=True,
        events=shapes.ChatChunk,
    ),
    Route(
        "POST",
        "/v1/completions",
        completions.complete,
        shapes.CompletionAnswer,
        CompletionRequest,
        generates=True,
        events=shapes.CompletionChunk,
    ),
    Route("POST", "/v1/embeddings", embeddings.embed, shapes.EmbeddingAnswer, EmbeddingRequest, generates=True),
    Route(
        "POST",
        "/v1/responses",
        responses.create_response,
        Response,
        ResponsesRequest,
        generates=True,
        events=ResponseEvent,
        framing=NAMED,
    ),
    Route(
        "POST",
        "/v1/messages",
        messages.create_message,
        Message,
        MessagesRequest,
        generates=True,
        events=MessageEvent,
        framing=NAMED,
    ),
    Route("POST", "/v1/messages/count_tokens", messages.count_tokens, TokenCount, CountRequest),
    Route("POST", "/tokenize", tokenize.tokenize, shapes.Tokens, TokenizeRequest),
    Route("POST", "/detokenize", tokenize.detokenize, shapes.Text, DetokenizeRequest),
    Route("GET", "/tokenizer_info", tokenize.tokenizer_info, shapes.TokenizerInfo, problems=(503,)),
    Route("GET", "/version", operations.version, shapes.Version),
    Route("GET", "/health", operations.health, shapes.Health, problems=(503,)),
    Route("GET", "/health/ready", operations.ready, shapes.Ready, problems=(503,)),
    Route("GET", "/load", operations.load, shapes.Load),
    Route("GET", "/metrics", operations.metrics, media=CONTENT_TYPE.decode()),
    Route("POST", "/octavo/v1/explain", caching.explain, shapes.Explanation, PrefixRequest),
    Route("GET", pinning.PATH, pinning.list_pins, shapes.Pins, problems=(503,)),
    Route("POST", pinning.PATH, pinning.add, shapes.PinAdded, PinRequest, generates=True, status=201, problems=(409,)),
    Route("DELETE", f"{pinning.PATH}/", pinning.remove, shapes.PinRemoved, names="id", problems=(404, 503)),
    Route("DELETE", "/octavo/v1/prefix_cache", caching.reset, shapes.BlocksDropped, problems=(409, 503)),
    Route("POST", "/reset_prefix_cache", caching.reset_as_vllm, shapes.Success, problems=(409, 503)),
    Route("GET", "/octavo/v1/state", observing.state, state_shapes.State),
    Route(
        "GET",
        "/octavo/v1/events",
        observing.events,
        events=AnyTold,
        media="text/event-stream",
        queries=observing.EVENT_QUERIES,
        problems=(503,),
    ),
    Route("GET", observing.REQUESTS, observing.request, state_shapes.RequestShown, names="id", problems=(404,)),
    Route(
        "POST",
        "/octavo/v1/dump",
        observing.write_dump,
        state_shapes.DumpShown,
        status=201,
        problems=(409, 503),
    ),
    Route("GET", "/octavo/v1/config", observing.config, state_shapes.Settings),
    Route("GET", "/docs", documentation.page, media="text/html; charset=utf-8"),
    Route("GET", "/openapi.json", documentation.document, shapes.Document),
)
