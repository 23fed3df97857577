"""The form of an answer: `response_format`, `structured_outputs` and `guided_*` become one StructuredOutput."""

import json
from typing import Any

from octavo.config.schema import LimitsConfig
from octavo.core.parameter import ParameterError
from octavo.core.structured import (
    MAX_STRUCTURE_DEPTH,
    Structure,
    StructuredOutput,
    StructuredOutputsParams,
    check_depth,
)
from octavo.server.openai.errors import bad_parameter, invalid
from octavo.server.openai.schema import ResponseFormat, Sampling
from octavo.server.service import Service
from octavo.text.lark import GrammarError

Named = tuple[str, StructuredOutput]
"""A form, and the path of the field that asked for it."""

_IN_JSON = {Structure.JSON_SCHEMA, Structure.STRUCTURAL_TAG}
_KINDS = {"json_", "regex", "choice", "grammar", "json_object", "structural_tag"}
_PARTS = {
    "json_schema": "json_schema",
    "structures": "structural_tag",
    "triggers": "structural_tag",
    "format": "structural_tag",
}
"""Part of a response_format -> the type that it belongs to."""
_OLD = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


async def asked_structure(service: Service, body: Sampling) -> StructuredOutput | None:
    """The form that the answer must have, tried. Raises ApiError 400 where it is none, or there are several."""
    asked = _asked(body)
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise invalid(f"{names} both say what form the answer has: give one", asked[1][0].split(".")[0])
    name, output = asked[0]
    await check_form(service, name, output)
    return output


async def check_form(service: Service, name: str, output: StructuredOutput) -> None:
    """Raises ApiError 400 where the form that the field `name` asks for cannot be compiled, or is too large."""
    _check_size(service.config.limits, name, output)
    try:
        await service.trials.check(output)
    except GrammarError as error:
        raise invalid(f"{name} cannot be used: {error}", name, "invalid_structured_outputs") from None


def _check_size(limits: LimitsConfig, name: str, output: StructuredOutput) -> None:
    """Raises ApiError 400 for what the operator holds to be too large, though it could be compiled."""
    if len(output.text) > limits.max_schema_length:
        allowed = f"at most {limits.max_schema_length:,} are allowed (--max-schema-length)"
        raise invalid(f"{name} has {len(output.text):,} characters, {allowed}", name)
    if limits.max_schema_depth < MAX_STRUCTURE_DEPTH and output.kind in _IN_JSON:
        try:
            check_depth(name, json.loads(output.text), limits.max_schema_depth)
        except ParameterError as error:
            raise invalid(f"{error} (--max-schema-depth)", name) from None


def _asked(body: Sampling) -> list[Named]:
    asked: list[Named] = []
    if body.response_format is not None:
        asked += _of_format(body.response_format)
    if body.structured_outputs is not None:
        given = body.structured_outputs.model_dump(include=_KINDS, exclude_none=True, by_alias=True)
        name = "structured_outputs" if len(given) != 1 else f"structured_outputs.{next(iter(given))}"
        asked.append((name, _output(name, **given)))
    for name, kind in _OLD.items():
        if (value := getattr(body, name)) is not None:
            asked.append((name, _output(name, **{kind: value})))
    return asked


def _of_format(given: ResponseFormat) -> list[Named]:
    _check_parts(given)
    if given.type == "json_object":
        return [("response_format", _output("response_format", json_object=True))]
    if given.json_schema is not None:
        name = "response_format.json_schema.schema"
        return [(name, _output(name, json=given.json_schema.schema_))]
    if given.type == "structural_tag":
        tag = given.model_dump(include={"type", "structures", "triggers", "format"}, exclude_none=True)
        return [("response_format", _output("response_format", structural_tag=tag))]
    return []


def _check_parts(given: ResponseFormat) -> None:
    """Raises ApiError where the type lacks its part, or another type's part is there."""
    if given.type == "json_schema" and given.json_schema is None:
        message = "response_format.json_schema is required where the type is json_schema"
        raise invalid(message, "response_format.json_schema", "missing_required_parameter")
    for name, kind in _PARTS.items():
        if getattr(given, name) is not None and given.type != kind:
            message = f"response_format.{name} belongs to the type {kind}, and the type is {given.type}"
            raise invalid(message, f"response_format.{name}")


def _output(name: str, **given: Any) -> StructuredOutput:
    try:
        return StructuredOutputsParams(**given).output()
    except ParameterError as error:
        raise bad_parameter(error, name) from None
