"""VirtualTime: a clock that stands still until somebody moves it."""


class VirtualTime:
    """Seconds since the beginning. Called, it tells the time: so it is a clock for the engine's loop."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError(f"time does not go back, by {-seconds} s or otherwise")
        self.now_s += seconds
