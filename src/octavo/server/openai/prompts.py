"""A prompt as the model reads it, and what is left of one that is cut."""

from dataclasses import dataclass

from octavo.server.openai.errors import invalid


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model reads it, and as text where that is what came."""

    ids: tuple[int, ...]
    text: str | None = None


def cut(prompt: Prompt, count: int | None, room: int, side: str | None = None) -> Prompt:
    """What `truncate_prompt_tokens` leaves of a prompt: so many of its tokens, or with -1 those that `room` holds.

    The last ones, or with the side `right` the first. Raises ApiError 400 for a count that is none.
    """
    if count is None:
        return prompt
    if count == 0 or count < -1:
        raise invalid(f"truncate_prompt_tokens must be an integer from 1, or -1, got {count}", "truncate_prompt_tokens")
    most = room if count == -1 else count
    if len(prompt.ids) <= most:
        return prompt
    return Prompt(prompt.ids[:most] if side == "right" else prompt.ids[-most:])
