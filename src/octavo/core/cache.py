"""KvCache: the blocks of one replica, what is in them, and who may share it. The scheduler decides; this knows."""

from collections.abc import Sequence

from octavo.core.choice import Choice
from octavo.core.claims import Claims
from octavo.core.events import BlockEvicted, BlockStored, Event
from octavo.core.groups import KvGroups
from octavo.core.hashing import Digest, KeyChain, root_key
from octavo.core.lease import Lease
from octavo.core.misses import History, Miss, MissReason, Sought, why_missed
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, PrefixIndex
from octavo.core.types import Limits

Hit = tuple[CachedBlock, ...]
"""Cached blocks that hold a sequence's first tokens, from the first block on."""


class KvCache:
    """Owns the pool, the prefix index and the claims; gives choices their leases."""

    def __init__(self, limits: Limits, digest: Digest, fingerprint: bytes = b"") -> None:
        """`fingerprint` names the model in block keys."""
        self.groups = KvGroups.of(limits)
        self.pool = BlockPool(limits.num_blocks)
        self.index = PrefixIndex(self.groups)
        self.claims = Claims(limits.block_size)
        self.history = History()
        self.queries = self.hits = 0
        """Prompt tokens that were looked for, and found, since the start or the last reset."""
        self._digest = digest
        self._fingerprint = fingerprint
        self._enabled = limits.enable_prefix_caching
        self._block_size = limits.block_size
        self._slides = any(window is not None for window in limits.windows)

    def new_chain(self, namespace: bytes) -> KeyChain:
        """The keys of a sequence that may share blocks within `namespace`: none yet."""
        return KeyChain(self._digest, root_key(self._digest, namespace, self._fingerprint), self._block_size)

    def new_lease(self, hit: Sequence[CachedBlock] = (), num_slots: int = 0) -> Lease:
        """A lease on the blocks of a hit, with the first `num_slots` slots in use."""
        return Lease.on_hit(self.pool, self.index, self.groups, hit, num_slots)

    # ---- hits ----

    def reads(self, choice: Choice) -> bool:
        """May it use what others computed? Not where it owes logprobs of its prompt: those are not cached."""
        return self._enabled and not choice.scores_prompt

    def look_up(self, choice: Choice) -> Hit:
        """The longest hit for all that it knows. Keys are hashed once and kept; the cache itself does not change."""
        if self._enabled:
            choice.chain.extend(choice.tokens)
        return self.index.match(choice.chain) if self.reads(choice) else ()

    def shorter(self, choice: Choice, hit: Hit) -> Hit:
        """The longest hit with fewer blocks than this one."""
        return self.index.match(choice.chain, len(hit) - 1)

    def is_in_work(self, choice: Choice, hit: Hit) -> bool:
        """Does a step in the making compute the very block that comes after the hit?"""
        return self.reads(choice) and self.claims.is_in_work(choice, len(hit))

    def covers_all(self, choice: Choice, hit: Hit) -> bool:
        """Is every known token cached? The last one is computed again all the same, for its logits."""
        return len(hit) * self._block_size == len(choice.tokens)

    def num_blocks_needed(self, choice: Choice, hit: Hit) -> int:
        """Free blocks that it takes at most at once, until all its known tokens are computed.

        New ones, cached ones that it revives, and copied tails; of a group with a window never more than it can hold.
        """
        groups, refs, num_tokens = self.groups, self.pool.refs, len(choice.tokens)
        num_new = groups.blocks_for(num_tokens) - len(hit)
        num_blocks = self.covers_all(choice, hit) * groups.num_groups
        for group, window in enumerate(groups.windows):
            held = hit[groups.first_read(window, choice.computed) :]
            num_revived = sum([not refs[entry.blocks[group]] for entry in held])
            num_blocks += min(num_new + num_revived, groups.most_held(window, num_tokens))
        return num_blocks

    def count(self, choice: Choice, num_cached: int) -> None:
        """Takes note that it looked for its prompt, and found this much."""
        if self.reads(choice):
            self.queries += choice.prompt_len
            self.hits += num_cached

    def why_missed(self, choice: Choice, hit: Hit, now: float) -> Miss | None:
        """Why it has to compute more than its last token, after such a hit. Pure."""
        if choice.num_left <= 1:
            return None
        if not self._enabled:
            return Miss(MissReason.DISABLED, 0)
        if not self.reads(choice):
            return Miss(MissReason.PROMPT_LOGPROBS, 0)
        if self.claims.has(choice.chain, len(hit)):
            return Miss(MissReason.STILL_COMPUTING, choice.computed)
        tenant = choice.request.tenant
        sought = Sought(choice.chain, choice.tokens, tenant, len(hit), choice.computed, self._block_size)
        return why_missed(sought, hit[-1] if hit else None, self.index, self.history, now)

    # ---- leases ----

    def take(self, choice: Choice, hit: Hit, num_cached: int) -> None:
        """Gives a choice a lease on its hit and the claim to the block that it computes next."""
        if self._enabled:
            self.history.note_namespace(choice.request.tenant, choice.chain.under(0))
        choice.lease = self.new_lease(hit, num_cached)
        choice.next_full = self._next_full(num_cached)
        self.claims.renew(choice)

    def publish(self, choice: Choice) -> None:
        """Makes the blocks that are now full findable, gives back those behind a window, and moves its claim on."""
        choice.next_full = self._next_full(choice.computed)
        if self._enabled:
            choice.chain.extend(choice.tokens)
            choice.lease.publish(choice.chain, choice.computed)
            self.claims.renew(choice)
        if self._slides:
            choice.lease.slide(choice.computed)

    def let_go(self, choice: Choice) -> None:
        """Takes a choice's lease and claim away. Idempotent."""
        choice.lease.release()
        self.claims.drop(choice)

    def _next_full(self, num_computed: int) -> int:
        return (num_computed // self._block_size + 1) * self._block_size

    # ---- as a whole ----

    def clear(self) -> bool:
        """Forgets every cached block and counts anew; False, and no change, while blocks are held."""
        if self.pool.num_leased:
            return False
        for block in self.pool.drop_cached():
            self.index.forget(block)
        self.queries = self.hits = 0
        return True

    def drain(self, now: float) -> list[Event]:
        """What became findable and what no longer is, since the last call, in order."""
        events: list[Event] = []
        for change in self.index.drain():
            entry = change.entry
            if change.stored:
                parent = entry.parent.key if entry.parent else None
                events.append(BlockStored(now, entry.key, parent, len(entry.tokens)))
            else:
                self.history.note_evicted(entry.key, now)
                events.append(BlockEvicted(now, entry.key))
        return events
