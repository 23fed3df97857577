"""Conversations to prompts: the model's chat template, rendered in a sandbox and encoded without surprises."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from octavo.models.checkpoint import Vocabulary
from octavo.text.calls.untaught import told
from octavo.text.controls import texts_in, unused_characters
from octavo.text.messages import Conversation, TemplateError, plain_copy, prepare
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["MAX_PROMPT_CHARS", "ChatTemplate", "TemplateError", "encode_chat", "model_template"]

MAX_PROMPT_CHARS = 16 * 1024 * 1024
Tools = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A compiled template. Immutable, and safe to use from many threads."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """`special_tokens`: `bos_token` and the like, as variables of the template. `now`: for `strftime_now`.

        Raises TemplateError for a syntax error, with its line.
        """
        self.source = source
        self.knows_tools = "tools" in source
        self.special_tokens = dict(special_tokens)
        self.variables, self.words, self._template = _compiled(source, now)
        """`variables`: all that it reads; `words`: all names of fields, and all texts. Others make no difference."""

    def render(
        self,
        messages: Conversation,
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Tools | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt as text.

        `content` may be text, null, or a list of text parts. `continue_final_message` ends the prompt where the last
        message's text ends, without what closes its turn; `add_generation_prompt` is then off. `variables` are for the
        template; they cannot replace `messages`. Tools of which the template knows nothing are told in words. Raises
        TemplateError.
        """
        prepared = prepare(messages)
        if continue_final_message and not (prepared and prepared[-1]["content"]):
            raise TemplateError("continue_final_message needs a last message with text")
        given = {
            **variables,
            "messages": prepared if self.knows_tools else told(prepared, tools),
            "tools": plain_copy(tools) or None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        return self._continued(given) if continue_final_message else self._run(given)

    def _continued(self, variables: dict[str, Any]) -> str:
        """Renders with a mark at the end of the last message, and cuts there."""
        messages = variables["messages"]
        mark = next(unused_characters([self.source, *variables.values()]))
        last = messages[-1] | {"content": messages[-1]["content"] + mark + " "}
        text, found, after = self._run(variables | {"messages": [*messages[:-1], last]}).rpartition(mark)
        if not found:
            raise TemplateError("continue_final_message: the template does not write the last message's text")
        return text if after.startswith(" ") else text.rstrip()  # it trims messages, so it would have trimmed this one

    def _run(self, variables: Mapping[str, Any]) -> str:
        from octavo.text.sandbox import metered

        chunks: list[str] = []
        size = 0
        try:
            for chunk in self._template.generate({**self.special_tokens, **variables, **metered()}):
                size += len(chunk)
                if size > MAX_PROMPT_CHARS:
                    raise TemplateError(f"the prompt is longer than {MAX_PROMPT_CHARS} characters")
                chunks.append(chunk)
        except Exception as error:
            raise _template_error(error) from error
        return "".join(chunks)


def model_template(vocabulary: Vocabulary, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate:
    """The template in `source`, else the model's own. Raises TemplateError where there is none: none is made up."""
    source = source or vocabulary.chat_template
    if not source:
        raise TemplateError("this model has no chat template: give one with --chat-template, or use /v1/completions")
    return ChatTemplate(source, tokenizer.special_tokens)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Conversation,
    at_most: int | None = None,
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Tools | None = None,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """The prompt as ids: what `render` gives, with control tokens only where the template itself wrote them.

    What looks like one in a message, a tool or a variable is encoded as the text that it is, unless the tokenizer
    trusts texts. There is exactly one BOS where the template writes one or the tokenizer adds one. Raises
    TemplateError, ValueError for lone surrogates, and TooLong, before it is encoded, for a prompt that certainly has
    more than `at_most` ids.
    """
    given = {"messages": prepare(messages), "tools": tools, "variables": variables}
    controls = tokenizer.controls
    threatened = not tokenizer.trusts_texts and any(controls.threatened(text) for text in texts_in(given))
    mark = next(unused_characters([template.source, given])) if threatened else ""
    if threatened:
        given = plain_copy(given, lambda text: controls.guard(text, mark))
    text = template.render(
        given["messages"],
        add_generation_prompt=add_generation_prompt,
        tools=given["tools"],
        continue_final_message=continue_final_message,
        **given["variables"],
    )
    tokenizer.check_length(text.replace(mark, "") if mark else text, at_most)
    if threatened:
        ids = tokenizer.encode_guarded(text, mark)
    else:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    return _with_one_bos(tokenizer, ids)


def _with_one_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    bos = tokenizer.bos_token_id
    if bos is None or not tokenizer.adds_bos:
        return ids
    while ids[1:2] == [bos] and ids[0] == bos:
        ids = ids[1:]
    return ids if ids[:1] == [bos] else [bos, *ids]


def _compiled(source: str, now: Callable[[], datetime]) -> tuple[frozenset[str], frozenset[str], "Template"]:
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.meta import find_undeclared_variables

    from octavo.text.sandbox import environment

    sandbox = environment(now)
    try:
        tree = sandbox.parse(source)
        texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        words = texts.union(node.attr for node in tree.find_all(nodes.Getattr))
        return frozenset(find_undeclared_variables(tree)), frozenset(words), sandbox.from_string(source)
    except TemplateSyntaxError as error:
        raise TemplateError(f"the chat template does not parse: line {error.lineno}: {error.message}") from error
    except Exception as error:
        raise TemplateError(f"the chat template does not compile: {_described(error)}") from error


def _template_error(error: Exception) -> TemplateError:
    from octavo.text.sandbox import TemplateRaised

    if isinstance(error, TemplateError):
        return error
    if isinstance(error, TemplateRaised):
        return TemplateError(str(error))
    return TemplateError(f"the chat template failed: {_described(error)}")


def _described(error: Exception) -> str:
    return str(error) or type(error).__name__
