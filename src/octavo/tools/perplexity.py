"""`octavo doctor --perplexity FILE`: how well the model reads a text as it is configured, and what its formats cost.

The text is cut into windows, and each is read by itself: its first token is given, every other one is predicted from
those before it in the window. A window begins with BOS where the tokenizer has one, else with the last token of the one
before it, so that each token (but the text's first, without BOS) is predicted once: the stride is a token less than the
window.
"""

import argparse
import dataclasses
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config import Config
from octavo.config.sources import Resolved
from octavo.core.types import TokenId
from octavo.engine.client import EngineFacts
from octavo.models.catalog import names_of
from octavo.tools.partner import Partner, Scored, open_partner
from octavo.tools.terminal import Show, note, to_json

WINDOW = 513
"""Tokens of a window: 512 are predicted. Less where the context is shorter."""


class NoText(ValueError):
    """A file that cannot be read, is not UTF-8, or has too little in it to predict anything."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one configuration made of a text."""

    weight_format: str
    kv_cache_dtype: str
    isa: str
    window: int
    num_predicted: int
    nll: float
    """Mean negative log-likelihood of a token, in nats."""
    best: tuple[TokenId, ...] = ()
    """The most likely token in each place that is predicted."""
    nlls: tuple[float, ...] = ()
    """Of the token there."""

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Prints a reading, and with --baseline the one in float32 beside it; or both as JSON."""
    text = read_text(Path(options.perplexity))
    config = resolved.config
    configs = [config, *([in_float32(config)] if options.baseline else [])]
    readings = [read(each, text, note) for each in configs]
    name = names_of(config.model.model, config.model.served_model_name)[0]
    written = as_json(name, readings) if options.json else as_text(name, readings)
    sys.stdout.write(written + "\n")
    return 0


def read_text(path: Path) -> str:
    """The text of a file. Raises NoText."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoText(f"--perplexity: cannot read {path}: {error}") from error


def in_float32(config: Config) -> Config:
    """The same, with every number of the file kept, and nothing rounded on the way."""
    model = dataclasses.replace(config.model, dtype="float32", quantization=None)
    cache = dataclasses.replace(config.cache, kv_cache_dtype="float32")
    return dataclasses.replace(config, model=model, cache=cache)


def read(config: Config, text: str, tell: Show) -> Reading:
    """Reads a text with the configured model. Raises NoText where nothing in it can be predicted."""
    with open_partner(config) as (partner, facts):
        return read_ids(partner, facts, partner.encode(text), tell)


def read_ids(partner: Partner, facts: EngineFacts, ids: Sequence[TokenId], tell: Show) -> Reading:
    """Reads a text that is tokenised already; as `read` otherwise."""
    bos = partner.encode("")[:1]
    bos = bos if list(ids[:1]) == bos else []
    window = min(WINDOW, facts.capacity.max_model_len - 1)
    if len(ids) < 2 or window < 2:
        raise NoText(f"--perplexity: {len(ids)} tokens in windows of {window}: there is nothing to predict")
    parts = list(windows(ids[len(bos) :], window, bos))
    scored: list[Scored] = []
    for number, part in enumerate(parts):
        if is_news(number, len(parts)):
            tell(f"{facts.weight_format}, KV {facts.kv_cache_dtype}: window {number + 1} of {len(parts)}")
        scored += partner.score(part)
    nlls = tuple(-each.logprob for each in scored)
    best = tuple(each.best for each in scored)
    mean = math.fsum(nlls) / len(nlls)
    return Reading(facts.weight_format, facts.kv_cache_dtype, facts.isa, window, len(nlls), mean, best, nlls)


def windows(ids: Sequence[TokenId], size: int, bos: Sequence[TokenId] = ()) -> Iterator[list[TokenId]]:
    """Runs of up to `size` ids, each from the last of the one before it on; or from BOS, where there is one.

    size 4:  0 1 2 3 4 5 6 7   ->   0 1 2 3 | 3 4 5 6 | 6 7   or   B 0 1 2 | B 3 4 5 | B 6 7
    """
    end = len(ids) if bos else len(ids) - 1
    for first in range(0, end, size - 1):
        yield [*bos, *ids[first : first + size - len(bos)]]


def is_news(number: int, count: int) -> bool:
    """Is this one of at most ten moments on the way at which a person is told how far it is?"""
    return number == 0 or 10 * number // count > 10 * (number - 1) // count


def as_text(name: str, readings: Sequence[Reading]) -> str:
    """A line for each reading, and one that compares them."""
    own = readings[0]
    lines = [f"{name}: {own.num_predicted:,} tokens predicted, in windows of {own.window}"]
    for each in readings:
        figures = f"NLL {each.nll:.4f}, perplexity {each.perplexity:.3f}"
        lines.append(f"  {each.weight_format}, KV {each.kv_cache_dtype} ({each.isa}): {figures}")
    if len(readings) > 1:
        nll, perplexity = (100 * (ratio - 1) for ratio in _ratios(own, readings[1]))
        agreement = f"top-1 agreement {top1_agreement(own, readings[1]):.2%}"
        lines.append(f"  against float32: NLL {nll:+.2f} %, perplexity {perplexity:+.2f} %, {agreement}")
    return "\n".join(lines)


def as_json(name: str, readings: Sequence[Reading]) -> str:
    own = readings[0]
    value: dict[str, Any] = {"model": name, "window": own.window, "num_predicted": own.num_predicted}
    for key, reading in zip(("reading", "baseline"), readings, strict=False):
        formats = {"weight_format": reading.weight_format, "kv_cache_dtype": reading.kv_cache_dtype, "isa": reading.isa}
        value[key] = {**formats, "nll": reading.nll, "perplexity": reading.perplexity}
    if len(readings) > 1:
        value["nll_ratio"], value["perplexity_ratio"] = _ratios(own, readings[1])
        value["top1_agreement"] = top1_agreement(own, readings[1])
    return to_json(value, indent=2)


def top1_agreement(own: Reading, baseline: Reading) -> float:
    """The share of places in which both find the same token most likely."""
    return sum(map(operator.eq, own.best, baseline.best)) / len(baseline.best)


def _ratios(own: Reading, baseline: Reading) -> tuple[float, float]:
    return own.nll / baseline.nll, own.perplexity / baseline.perplexity
