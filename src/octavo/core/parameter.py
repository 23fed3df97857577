"""ParameterError: what is wrong with a value that a client gave, in one line whatever the value is."""

_MOST_SHOWN = 120
"""Characters of a value that an error quotes."""


class ParameterError(ValueError):
    """A sampling parameter outside its range: names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} must be {allowed}, got {shown(value)}")
        self.field = field


def shown(value: object) -> str:
    """What the value is, in few words whatever it is: some cannot be written at all, as integers of 5000 digits."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
