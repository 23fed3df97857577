"""`octavo explain`: what became of a request, what a prompt finds in the cache, what a setting leads to, an error."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from octavo.config.schema import Setting, settings
from octavo.config.sources import Resolved
from octavo.config.values import did_you_mean
from octavo.tools import visit
from octavo.tools.terminal import to_json, write


class NothingToExplain(ValueError):
    """What was named does not exist, or nothing was named; the message says what would do."""


def main(resolved: Resolved, options: argparse.Namespace) -> int:
    """Prints the answer, for people or as JSON. Nothing is computed, and the server stays as it is."""
    ask, as_text = SUBJECTS[options.subject]
    answer = ask(resolved, options)
    write((to_json(answer) if options.json else "\n".join(as_text(answer))) + "\n")
    return 0


def _one_word(options: argparse.Namespace, what: str) -> str:
    if len(options.text) != 1:
        raise NothingToExplain(f"name one {what}: octavo explain {options.subject} {what.upper()}")
    return options.text[0]


# -- request ---------------------------------------------------------------------------------------------------------


def _ask_request(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    name = quote(_one_word(options, "id"), safe="")
    return visit.ask(resolved.config, options, "GET", f"/octavo/v1/requests/{name}")


def _request_as_text(answer: dict[str, Any]) -> Iterator[str]:
    """A head, then for each prompt a line for each moment: seconds since it came, and what happened."""
    tenant = f", tenant {answer['tenant']}" if answer["tenant"] else ""
    yield f"{answer['id']}: {answer['path'] or 'asked within the server'}{tenant}"
    for one in answer["requests"]:
        yield f"{one['id']}: {one['state']}, {one['prompt_tokens']} + {one['generated_tokens']} tokens"
        for moment in one["timeline"]:
            yield f"  {moment['at']:10.3f} s  {moment['text']}"
        if one["omitted"]:
            yield f"  {one['omitted']} moments in its middle are not kept"


# -- cache -----------------------------------------------------------------------------------------------------------


def _ask_cache(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    return visit.ask(resolved.config, options, "POST", "/octavo/v1/explain", visit.prefix(options))


def _cache_as_text(answer: dict[str, Any]) -> Iterator[str]:
    """A few lines; texts as JSON strings, so that spaces and line ends can be seen."""
    cached, total = answer["cached_tokens"], answer["prompt_tokens"]
    yield f"{cached} of {total} tokens are cached, {answer['computed_tokens']} would be computed"
    miss = answer["miss"]
    if miss is None:
        return
    ago = "" if miss["evicted_s"] is None else f", {miss['evicted_s']:.1f} s ago"
    yield f"from token {miss['at']} on: {miss['reason']}: {miss['message']}{ago}"
    yield f"  after    {to_json(miss['before'])}"
    yield f"  prompt   {_side(miss['prompt'])}"
    if miss["cached"] is not None:
        yield f"  cached   {_side(miss['cached'])}"


def _side(side: dict[str, Any]) -> str:
    return " ".join(map(to_json, side["tokens"]))


# -- config ----------------------------------------------------------------------------------------------------------

_MEMORY = ("memory", "weights", "KV cache", "context")
LEADS_TO: Mapping[str, tuple[str, ...]] = {
    "model": ("weights", "KV cache", "context"),
    "dtype": ("weights", "KV cache"),
    "isa": ("kernels",),
    "num_threads": ("threads",),
    "gpu_memory_utilization": _MEMORY,
    "kv_cache_memory_bytes": _MEMORY,
    "num_blocks": _MEMORY,
    "block_size": ("KV cache",),
    "max_model_len": _MEMORY,
    "max_num_seqs": _MEMORY,
    "max_num_batched_tokens": ("KV cache",),
    "kv_offload_bytes": ("KV offload",),
    "kv_offload_path": ("KV offload",),
}
"""Settings -> the lines of the engine's report, by what they begin with, that say what came of them."""


def _ask_config(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    """What a running server was told, and what came of it; one setting, where it is named."""
    setting = _setting(options.text)
    answer = visit.ask(resolved.config, options, "GET", "/octavo/v1/config")
    if setting is None:
        return answer
    row = next(row for row in answer["settings"] if row["setting"] == setting.path)
    heads = LEADS_TO.get(setting.name, ())
    report = [line for line in answer["report"] if line.partition(":")[0] in heads]
    allowed = {"flag": setting.flag, "environment": setting.env, "default": setting.default}
    return {**answer, "settings": [{**row, **allowed}], "report": report}


def _setting(words: list[str]) -> Setting | None:
    """Raises NothingToExplain. Names may be those of flags, of the environment, or of the tree."""
    if not words:
        return None
    if len(words) > 1:
        raise NothingToExplain("name one setting, or none for all: octavo explain config [KEY]")
    name = words[0].removeprefix("--").replace("-", "_").lower().removeprefix("octavo_").rpartition(".")[2]
    if name not in settings():
        raise NothingToExplain(f"there is no setting {words[0]!r}{did_you_mean(name, settings())}")
    return settings()[name]


def _config_as_text(answer: dict[str, Any]) -> Iterator[str]:
    """One setting with all that is known of it; or each that is not the default. Then what came of them."""
    rows = answer["settings"]
    if len(rows) == 1:
        (row,) = rows
        yield f"{row['setting']} = {to_json(row['value'])}, from {row['origin'] or 'whoever built the server'}"
        yield f"  {row['help']}"
        yield f"  {row['flag']}, {row['environment']}; default {to_json(row['default'])}"
    else:
        for row in rows:
            if row["origin"] != "default":
                yield f"{row['setting']} = {to_json(row['value'])}, from {row['origin'] or 'whoever built the server'}"
        yield "all others have their defaults (`octavo config` lists them)"
    if answer["report"]:
        yield "what the engine made of it:"
        yield from (f"  {line}" for line in answer["report"])


# -- errors ----------------------------------------------------------------------------------------------------------


def _ask_error(resolved: Resolved, options: argparse.Namespace) -> dict[str, Any]:
    from octavo.server.openai.codes import CODES

    del resolved
    name = _one_word(options, "code")
    code = CODES.get(name)
    if code is None:
        raise NothingToExplain(f"there is no error {name!r}{did_you_mean(name, CODES)}; docs/reference/api.md has all")
    return {"code": name, "statuses": list(code.statuses), "meaning": code.meaning, "remedy": code.remedy}


def _error_as_text(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{answer['code']} ({', '.join(map(str, answer['statuses']))}): {answer['meaning']}"
    yield f"  what to do: {answer['remedy']}"


Ask = Callable[[Resolved, argparse.Namespace], dict[str, Any]]
AsText = Callable[[dict[str, Any]], Iterator[str]]
SUBJECTS: Mapping[str, tuple[Ask, AsText]] = {
    "request": (_ask_request, _request_as_text),
    "cache": (_ask_cache, _cache_as_text),
    "config": (_ask_config, _config_as_text),
    "error": (_ask_error, _error_as_text),
}
