"""The description of the API is made from what is there, so it has all of it."""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from octavo.config.schema import settings
from octavo.server.openai.codes import CODES
from octavo.server.reference import reference
from octavo.server.routes import ROUTES
from tests.layout.project import PACKAGE, ROOT, source_files, tree
from tests.server.site import Site


def document(site: Site) -> dict[str, Any]:
    return site.http.get("/openapi.json").json()


def test_each_route_and_each_field_is_described(site: Site) -> None:
    described = document(site)
    for route in ROUTES:
        path = f"{route.path}{{{route.names}}}" if route.path.endswith("/") else route.path
        operation = described["paths"][path][route.method.lower()]
        assert operation["summary"]
        if route.body is not None:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            properties = described["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
            assert properties.keys() == route.body.model_fields.keys()
            assert all(field.get("description") for field in properties.values())


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
        return own.union(*map(references, value.values()))
    return set[str]().union(*map(references, value)) if isinstance(value, list) else set()


def test_references_lead_somewhere(site: Site) -> None:
    described = document(site)
    known = {f"#/components/{kind}/{name}" for kind, parts in described["components"].items() for name in parts}
    assert references(described["paths"]) | references(described["components"]) <= known


def test_the_reference_is_made_from_the_routes() -> None:
    assert (ROOT / "docs/reference/api.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_flags_that_fields_speak_of_exist() -> None:
    flags = {setting.flag for setting in settings().values()}
    named = {flag for route in ROUTES if route.body for flag in flags_in(str(route.body.model_json_schema()))}
    assert named and named <= flags


def test_flags_that_remedies_speak_of_exist() -> None:
    flags = {"--no-enable-prefix-caching", *(setting.flag for setting in settings().values())}
    assert {flag for code in CODES.values() for flag in flags_in(f"{code.meaning} {code.remedy}")} <= flags


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


CODE_AT = {"unavailable": 1, "failed": 1, "invalid": 2, "Refused": 2, "Never": 0, "Overfull": 0}
"""What is called with a code -> its place among the arguments."""


def codes_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        at = node.args[CODE_AT[name] : CODE_AT[name] + 1] if name in CODE_AT else []
        given = [*at, *(keyword.value for keyword in node.keywords if keyword.arg == "code")]
        yield from (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))


def test_each_code_of_an_error_is_told_of() -> None:
    """Codes of the engine's own errors, as `not_finite`, become `generation_failed`: see `errors.broken_off`."""
    rooms = [PACKAGE / "server", PACKAGE / "core"]
    written = {
        code
        for room in rooms
        for path in source_files(".py", under=room)
        for node in ast.walk(tree(path))
        for code in codes_in(node)
    }
    kept = {"invalid_value", "generation_failed", "structured_outputs", "nothing_allowed"}
    assert kept <= CODES.keys() and written | kept == CODES.keys(), "octavo.server.openai.codes has all there are"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_whole_without_the_rest_of_the_internet(site: Site) -> None:
    response = site.http.get("/docs")
    page = Page(response.text)
    assert response.headers["content-type"].startswith("text/html")
    assert page.links == ["openapi.json"]
    assert {"/v1/chat/completions", "temperature", "messages"} <= set(page.words)


def test_tokenize_and_detokenize(site: Site) -> None:
    """Both dialects, and there and back."""
    for field in ("prompt", "content"):
        answer = site.post("/tokenize", {field: "the \u00e9", "return_token_strs": True}).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) and answer["max_model_len"] == 256
        assert site.post("/detokenize", {"tokens": answer["tokens"]}).json() == {
            "prompt": "the \u00e9",
            "content": "the \u00e9",
        }
    messages = [{"role": "user", "content": "the <|im_end|>"}]
    ids = site.post("/tokenize", {"messages": messages}).json()["tokens"]
    usage = site.chat(messages, max_tokens=1).json()["usage"]
    assert len(ids) == usage["prompt_tokens"] and ids.count(2) == 1
    assert site.post("/tokenize", {"prompt": "a", "content": "b"}).json()["error"]["param"] == "content"
    assert site.post("/tokenize", {}).status_code == 400
    info = site.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "im_start" in info["chat_template"]
    assert site.http.get("/version").json()["fingerprint"] == "tiny-reference"
    assert site.http.get("/load").json()["server_load"] == 0


def test_the_id_of_a_control_token_is_what_its_text_alone_is(site: Site) -> None:
    """lm_eval's remote tokenizer takes the BOS's id from the first token of its text: with another one every
    perplexity is wrong, and nothing says so. In a longer text it stays text."""

    def ids(text: str, **fields: Any) -> list[int]:
        for name in ("prompt", "content"):
            tokens = site.post("/tokenize", {name: text, "add_special_tokens": False, **fields}).json()["tokens"]
        return tokens

    control = site.http.get("/tokenizer_info").json()["eos_token"]
    spelled = ids(control, parse_special=False)
    assert ids(control) == ids(control, parse_special=True) == [2] and len(spelled) > 1
    assert ids(f"the {control}") == [*ids("the "), *spelled] and ids(f"the {control}", parse_special=True)[-1:] == [2]
