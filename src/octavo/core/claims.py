"""Claims: which blocks are being computed now, so that equal prompts that arrive together do not compute twice."""

from octavo.core.choice import Choice
from octavo.core.hashing import KeyChain


class Claims:
    """At most one claim for each running choice: the block that it computes now, if its key is known already.

    Whoever shares a prefix with it hits the blocks before that one, and so comes to ask for that very key:

        leader    | published  | claimed | not yet |
        follower  | hit        | waits here
    """

    __slots__ = ("_block_size", "by_key")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.by_key: dict[bytes, Choice] = {}

    def renew(self, choice: Choice, first_loaded: int | None = None) -> None:
        """Moves a running choice's claim on to the block that it computes next, or else the first that it loads.

        The first to claim a key has it.
        """
        self.drop(choice)
        keys = choice.chain.keys
        position = choice.computed // self._block_size if first_loaded is None else first_loaded
        if position < len(keys) and self.by_key.setdefault(keys[position], choice) is choice:
            choice.claim = keys[position]

    def drop(self, choice: Choice) -> None:
        """Without a claim nothing changes."""
        if choice.claim is not None:
            del self.by_key[choice.claim]
            choice.claim = None

    def has(self, chain: KeyChain, position: int) -> bool:
        """Does anybody compute the block at this position of the chain, now or in a later step?"""
        return position < len(chain.keys) and chain.keys[position] in self.by_key

    def is_in_work(self, choice: Choice, num_hit: int) -> bool:
        """Does this very step compute the block after the `num_hit` ones that a waiting choice would hit?

        Then waiting costs less than computing it. Nobody waits for one that makes no headway in this step.
        """
        keys = choice.chain.keys
        owner = self.by_key.get(keys[num_hit]) if num_hit < len(keys) else None
        return owner is not None and owner.granted > 0
