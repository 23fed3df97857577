"""Structural tags: free text in which what stands between certain marks has a form. vLLM's older and newer notation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.text.lark import GrammarError, expression, json_rule, quoted, source

_TEXT = r"TEXT: /(.|\n)*/"
_EMPTY = '""'
_MAX_DEPTH = 32


def structural_source(tag: Any) -> str:
    """`{"structures": [{"begin", "schema", "end"}], "triggers"}`, or `{"format": ...}`. Raises GrammarError."""
    if not isinstance(tag, Mapping):
        raise GrammarError("it must be an object with `structures` and `triggers`, or with `format`")
    rules = _Rules()
    start = rules.term(tag.get("format") or _older(tag), "format", last=True)
    return source("\n".join([f"start: {start}", *rules.written, _TEXT]))


def _older(tag: Mapping[str, Any]) -> Mapping[str, Any]:
    structures, triggers = _list(tag, "structures", "it"), _list(tag, "triggers", "it")
    return {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": [
            {
                "begin": _text(each, "begin", "a structure"),
                "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
                "end": _text(each, "end", "a structure", ""),
            }
            for each in structures
        ],
    }


class _Rules:
    """The rules that formats need beside their own term."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._depth = 0

    def term(self, given: Any, where: str, *, last: bool) -> str:
        """A format as a term. `last`: nothing follows it, so it may be free text."""
        kind = given.get("type") if isinstance(given, Mapping) else None
        if kind not in _FORMATS:
            raise GrammarError(f"{where} must be an object whose type is one of {', '.join(_FORMATS)}")
        free = kind in _FREE and not (kind == "triggered_tags" and given.get("stop_after_first"))
        if free and not last:
            raise GrammarError(f"{where} is {kind}, after which nothing can follow but the end of its tag")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise GrammarError(f"formats lie more than {_MAX_DEPTH} deep inside each other")
        term = _FORMATS[kind](self, given, where, last)
        self._depth -= 1
        return term

    def add(self, name: str, body: str) -> str:
        """Writes a rule; returns its name. `name` may end in an attribute."""
        stem, bracket, attribute = name.partition("[")
        numbered = f"{stem}_{len(self.written)}"
        self.written.append(f"{numbered}{bracket}{attribute}: {body}")
        return numbered

    def groups(self, tags: Sequence[tuple[str, str, str]], triggers: Sequence[str]) -> str:
        """Text up to a trigger, and one of the tags that begin with it."""
        found: list[str] = []
        for trigger in triggers:
            bodies = [
                f"{quoted(begin[len(trigger) :])} {term} {end}"
                for begin, term, end in tags
                if begin.startswith(trigger)
            ]
            if bodies:
                first = self.add("trigger[lazy]", f"TEXT {quoted(trigger)}")
                found.append(self.add("group", f"{first} ({' | '.join(bodies)})"))
        return f"({' | '.join(found)})"

    def tag(self, given: Any, where: str) -> tuple[str, str, str]:
        """A tag as (begin, term, term of its end). What is free in it goes on up to its end."""
        if not isinstance(given, Mapping):
            raise GrammarError(f"{where} must be a tag, an object with begin, content and end")
        begin, ends = _text(given, "begin", where), given.get("end", "")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
            raise GrammarError(f"{where}.end must be a string, or a list of strings")
        content = given.get("content")
        end = f"({' | '.join(quoted(end) or _EMPTY for end in ends)})" if len(ends) > 1 else quoted(ends[0])
        if isinstance(content, Mapping) and content.get("type") == "any_text" and all(ends):
            return begin, "", self.add("rest[lazy]", f"TEXT {end}")
        return begin, self.term(content, f"{where}.content", last=not end), end


def _const(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    return quoted(_text(given, "value", where))


def _json(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    return json_rule(given.get("json_schema"))


def _regex(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    return expression(_text(given, "pattern", where))


def _any_text(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    return "TEXT"


def _sequence(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    elements = _list(given, "elements", where)
    terms = [
        rules.term(each, f"{where}.elements", last=last and place == len(elements))
        for place, each in enumerate(elements, 1)
    ]
    return f"({' '.join(terms)})"


def _or(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    terms = [rules.term(each, f"{where}.elements", last=last) for each in _list(given, "elements", where)]
    return f"({' | '.join(terms)})"


def _tag(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    begin, term, end = rules.tag(given, where)
    return f"{quoted(begin)} {term} {end}"


def _triggered(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    triggers = _list(given, "triggers", where)
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise GrammarError(f"{where}.triggers must be strings that are not empty")
    tags = [rules.tag(each, f"{where}.tags") for each in _list(given, "tags", where)]
    for begin, _, _ in tags:
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise GrammarError(f"the tag that begins with {begin!r} begins with none of the triggers")
    groups = rules.groups(tags, list(dict.fromkeys(triggers)))
    if given.get("stop_after_first"):
        return groups if given.get("at_least_one") else f"({groups} | TEXT)"
    return f"{groups}{'+' if given.get('at_least_one') else '*'} TEXT"


def _separated(rules: _Rules, given: Mapping[str, Any], where: str, last: bool) -> str:
    tags = [_tag(rules, each, f"{where}.tags", False) for each in _list(given, "tags", where)]
    one = rules.add("tag", " | ".join(tags))
    more = "" if given.get("stop_after_first") else f"({quoted(_text(given, 'separator', where))} {one})*"
    return f"({one} {more})" + ("" if given.get("at_least_one") else "?")


_Format = Callable[[_Rules, Mapping[str, Any], str, bool], str]
_FORMATS: Mapping[Any, _Format] = {
    "const_string": _const,
    "json_schema": _json,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered,
    "tags_with_separator": _separated,
}
_FREE = ("any_text", "triggered_tags")


def _list(given: Any, name: str, where: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{where} must have `{name}`, a list that is not empty")
    return value


def _text(given: Any, name: str, where: str, default: str | None = None) -> str:
    value = given.get(name, default) if isinstance(given, Mapping) else None
    if not isinstance(value, str):
        raise GrammarError(f"{where} must have `{name}`, a string")
    return value
