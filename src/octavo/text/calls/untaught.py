"""Tools for models whose chat template knows none: told and written in words, Hermes's way."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_TOLD = """\
# Tools

You may call functions to help with the user's request. Their signatures are within <tools></tools>:
<tools>
{tools}
</tools>

To call one, answer with a JSON object of its name and arguments within <tool_call></tool_call>, and with nothing else:
<tool_call>
{{"name": <function's name>, "arguments": <its arguments>}}
</tool_call>"""


def told(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> list[Message]:
    """Prepared messages, with the tools in words in the first, and with calls and their results as text."""
    written = [_written(message) for message in messages]
    if not tools or not written:
        return written
    words = _TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first = written[0]
    parts = [first["content"], words] if first["role"] == "system" else [words, first["content"]]
    return [first | {"content": "\n\n".join(filter(None, parts))}, *written[1:]]


def _written(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in message["tool_calls"]]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return rest | {"content": "\n".join(filter(None, [message["content"], *calls]))}


def _call(call: Any) -> str:
    function = call["function"] if isinstance(call.get("function"), dict) else call
    return json.dumps({key: function.get(key) for key in ("name", "arguments")}, ensure_ascii=False)
