"""Which kernels run here: an ordered list of candidates, each accepted or refused with a reason."""

from dataclasses import dataclass

from octavo.backends.cpu import _native


@dataclass(frozen=True, slots=True)
class Candidate:
    """One set of kernels. `reason` says why it is refused, or is empty."""

    name: str
    accepted: bool
    reason: str


def candidates() -> tuple[Candidate, ...]:
    """All kernel sets of this build, the preferred one first; the last one, `scalar`, is always accepted."""
    return tuple(Candidate(*found) for found in _native.candidates())


def choose(name: str | None) -> tuple[str, str]:
    """The kernel set to use, and why: `name` where one is forced, else the first accepted one.

    Raises ValueError for a name that is unknown or refused here, with the names that would do.
    """
    found = candidates()
    accepted = [candidate.name for candidate in found if candidate.accepted]
    if name is None:
        refused = "; ".join(f"{c.name}: {c.reason}" for c in found[: found.index(_named(found, accepted[0]))])
        return accepted[0], f"the best that this machine runs ({refused})" if refused else "the best there is"
    if name not in accepted:
        reasons = [c.reason for c in found if c.name == name]
        why = reasons[0] if reasons else "there is no such kernel set"
        raise ValueError(f"isa {name}: {why}; this machine runs {', '.join(accepted)}")
    return name, "forced"


def _named(found: tuple[Candidate, ...], name: str) -> Candidate:
    return next(candidate for candidate in found if candidate.name == name)
