"""KvCache: the blocks of one replica, what is in them, and who may share it. The scheduler decides; this knows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from octavo.core.choice import Choice
from octavo.core.claims import Claims
from octavo.core.events import BlockEvicted, BlockStored, Event, PrefixPinned, PrefixUnpinned, Tiered
from octavo.core.eviction import NewEviction
from octavo.core.groups import KvGroups
from octavo.core.hashing import BlockHash, KeyChain, new_chain
from octavo.core.lease import Lease
from octavo.core.misses import Miss, MissReason, Sought, history_of, why_missed
from octavo.core.pins import Pin, PinOutcome, Pins, PinWish
from octavo.core.plan import Transfers
from octavo.core.pool import BlockPool
from octavo.core.prefix import CachedBlock, IndexChange, PrefixIndex
from octavo.core.tiers import Room, Tier, swap_pays
from octavo.core.types import NO_BLOCK, BlockId, Limits, RequestId, TokenId


class Hit(NamedTuple):
    """Cached blocks that hold the first `num_tokens` tokens of a sequence.

        whole    [ b0 ][ b1 ]            hold exactly its tokens
        tail                [ b2 : .. ]  begins with its tokens and then goes on with others
        tokens   0 ............... num_tokens

    or, with a lower tier,

        whole    [ b0 ][ b1 ]
        loads                [ k2 ][ k3 ][ k4 ]  blocks of its own, to be filled from the tier
        tokens   0 ............................ num_tokens

    Where the tokens end within a block, the sequence goes on in a copy of it. That is so with a tail, and where all
    tokens are in whole blocks: the last token is computed again, for its logits.
    """

    whole: tuple[CachedBlock, ...] = ()
    tail: CachedBlock | None = None
    num_tokens: int = 0
    cut: bool = False
    """There was more, and no room for the copy."""
    loads: tuple[CachedBlock, ...] = ()
    """Fetched and ready."""

    @property
    def blocks(self) -> tuple[CachedBlock, ...]:
        return self.whole if self.tail is None else (*self.whole, self.tail)

    @property
    def num_loaded(self) -> int:
        """Of its tokens: those that come from the tier."""
        return self.num_tokens - sum([len(entry.tokens) for entry in self.whole]) if self.loads else 0


NO_HIT = Hit()


class KvCache:
    """Owns the pool, the prefix index and the claims; gives choices their leases."""

    def __init__(
        self,
        limits: Limits,
        block_hash: BlockHash,
        eviction: NewEviction,
        fingerprint: bytes = b"",
        tier: Tier | None = None,
    ) -> None:
        """`fingerprint` names the model in block keys; `tier` is where evicted blocks go, if anywhere.

        Raises ValueError for a tier below layers with a sliding window.
        """
        if tier is not None and limits.windows != (None,):
            raise ValueError("a lower tier keeps blocks of full attention only, and some layers have a sliding window")
        self.groups = KvGroups.of(limits)
        self.pool = BlockPool(limits.num_blocks, eviction)
        self.index = PrefixIndex(self.groups)
        self.claims = Claims(limits.block_size)
        self.history = history_of(limits.num_blocks)
        self.pins = Pins()
        self.tier = tier
        self.queries = self.hits = self.tier_hits = 0
        """Prompt tokens looked for, found, and of these found in the tier: since the start or the last reset."""
        self._block_hash = block_hash
        self._fingerprint = fingerprint
        self._num_chains = 0
        self._own: dict[RequestId, set[bytes]] = {}
        """Without prefix caching: the keys under which preempted choices of a request find their blocks again."""
        self._last_told: Tiered | None = None
        self._enabled = limits.enable_prefix_caching
        self._block_size = limits.block_size
        self._slides = any(window is not None for window in limits.windows)
        self._unit = limits.prefix_match_unit

    def new_chain(self, namespace: bytes) -> KeyChain:
        """The keys of a sequence that may share blocks within `namespace`, or with nobody: none yet.

        Without prefix caching a sequence still finds its own blocks again after a preemption: its root is its own.
        """
        if not self._enabled:
            self._num_chains += 1
            namespace = b"%d of %s" % (self._num_chains, namespace)
        return new_chain(self._block_hash, self._block_size, namespace, self._fingerprint)

    def new_lease(self, hit: Sequence[CachedBlock] = (), num_slots: int = 0) -> Lease:
        """A lease on the blocks of a hit, with the first `num_slots` slots in use."""
        return Lease.on_hit(self.pool, self.index, self.groups, hit, num_slots)

    # ---- hits ----

    def reads(self, choice: Choice) -> bool:
        """May it use what was computed before? Not where it owes logprobs or hidden states: those are not cached."""
        return (self._enabled or bool(choice.chain.keys)) and not choice.owes_positions

    def look_up(self, choice: Choice) -> Hit:
        """The longest hit for all that it knows. Its keys are hashed once and kept, and what they led to, too; the
        cache itself does not change.
        """
        if self._enabled:
            choice.chain.extend(choice.tokens)
        if not self.reads(choice):
            return NO_HIT
        hit = self.find(choice.chain, choice.tokens)
        choice.chain.found = hit.whole
        return hit

    def find(self, chain: KeyChain, tokens: Sequence[TokenId]) -> Hit:
        """The longest hit for `tokens`, of which `chain` has the keys; never all of them. Pure."""
        whole = self.index.match(chain)
        most, start = len(tokens) - 1, len(whole) * self._block_size
        if start >= most or self._unit >= self._block_size:
            return Hit(whole, None, min(start, most))
        nearest = self.index.nearest(chain.under(len(whole)), whole[-1] if whole else None, self._piece(tokens, start))
        tail, num_common = nearest if nearest and NO_BLOCK not in nearest[0].blocks else (None, 0)
        num_tokens = min(start + num_common // self._unit * self._unit, most)
        return Hit(whole, tail if num_tokens > start else None, num_tokens)

    def without_copy(self, choice: Choice, hit: Hit) -> Hit:
        """As much of a hit as whole blocks hold, to be continued in blocks of its own."""
        whole = self.index.match(choice.chain, hit.num_tokens // self._block_size)
        return Hit(whole, None, len(whole) * self._block_size, cut=True)

    def copies(self, hit: Hit) -> bool:
        """Does the sequence go on in a copy of the last block?"""
        return hit.num_tokens < len(hit.blocks) * self._block_size

    def with_loads(self, choice: Choice, hit: Hit, now: float) -> Hit | None:
        """The hit, with what continues its whole blocks in the tier; None while some of that is on its way."""
        if self.tier is None or not self.reads(choice):
            return hit
        most = len(choice.tokens) - 1
        run = self.tier.match(choice.chain, hit.whole)[: self.groups.blocks_for(most) - len(hit.whole)]
        loads = self.tier.fetch(choice, run, now)
        if not loads:
            return hit if loads is not None else None
        return self._continued(hit, loads, most)

    def _continued(self, hit: Hit, loads: tuple[CachedBlock, ...], most: int) -> Hit:
        """The whole blocks of a hit and, behind them, what comes from the tier: `most` tokens at the most."""
        return Hit(hit.whole, None, min((len(hit.whole) + len(loads)) * self._block_size, most), loads=loads)

    def is_in_work(self, choice: Choice, hit: Hit) -> bool:
        """Does a step in the making compute the very block that comes after the whole ones?"""
        return self.claims.is_in_work(choice, len(hit.whole)) and self.reads(choice)

    def num_blocks_needed(self, choice: Choice, hit: Hit, num_tokens: int) -> int:
        """Free blocks that it takes at most at once, until `num_tokens` tokens are computed.

        New ones, cached ones that it revives, and copied tails; of a group with a window never more than it can hold.
        """
        groups, refs, blocks = self.groups, self.pool.refs, hit.blocks
        num_known, num_left = len(choice.tokens), len(choice.tokens) - hit.num_tokens
        num_new = groups.blocks_for(num_tokens) - len(blocks)
        num_blocks = self.copies(hit) * groups.num_groups
        for group, window in enumerate(groups.windows):
            held = blocks[groups.first_read(window, hit.num_tokens) :]
            num_taken = num_new + [refs[entry.blocks[group]] for entry in held].count(0)
            if window is not None:
                num_taken = min(num_taken, groups.most_until(window, num_tokens, min(num_known, num_tokens), num_left))
            num_blocks += num_taken
        return num_blocks

    def count(self, choice: Choice, hit: Hit) -> None:
        """Takes note that it looked for its prompt, and found this much."""
        if self.reads(choice):
            self.queries += choice.prompt_len
            self.hits += hit.num_tokens
            self.tier_hits += hit.num_loaded

    def why_missed(self, choice: Choice, hit: Hit, now: float) -> Miss | None:
        """Why it has to compute more than its last token, after such a hit. Pure."""
        if self._enabled and choice.num_left > 1 and not self.reads(choice):
            scores = choice.request.pooling is None
            return Miss(MissReason.PROMPT_LOGPROBS if scores else MissReason.MEAN_POOLING, 0)
        return self._why(choice.chain, choice.tokens, choice.request.tenant, hit, now)

    def explain(self, tokens: Sequence[TokenId], namespace: bytes, tenant: str, now: float) -> tuple[int, Miss | None]:
        """What a prompt would find if it came now: how many tokens, and why no more. Changes nothing."""
        chain = self.new_chain(namespace)
        chain.extend(tokens)
        hit = self.find(chain, tokens) if self._enabled else NO_HIT
        if self.tier is not None and (run := self.tier.match(chain, hit.whole)):
            hit = self._continued(hit, run, len(tokens) - 1)
        return hit.num_tokens, self._why(chain, tokens, tenant, hit, now)

    def _why(self, chain: KeyChain, tokens: Sequence[TokenId], tenant: str, hit: Hit, now: float) -> Miss | None:
        if len(tokens) - hit.num_tokens <= 1:
            return None
        if not self._enabled:
            return Miss(MissReason.DISABLED, 0)
        if hit.cut:
            return Miss(MissReason.NO_ROOM_TO_COPY, hit.num_tokens)
        known = (*hit.whole, *hit.loads)
        if self.claims.has(chain, len(known)):
            return Miss(MissReason.STILL_COMPUTING, hit.num_tokens)
        sought = Sought(chain, tokens, tenant, len(known), hit.num_tokens, self._block_size)
        return why_missed(sought, known[-1] if known else None, self.index, self.history, now)

    # ---- leases ----

    def take(self, choice: Choice, hit: Hit) -> None:
        """Gives a choice a lease on its hit, with blocks for what it loads, and the claim to the block that follows."""
        if self._enabled:
            self.history.note_namespace(choice.request.tenant, choice.chain.under(0))
        choice.next_full = self._next_full(hit.num_tokens)
        choice.chain.found = ()
        if hit.loads:
            self._load(choice, hit)
        else:
            choice.lease = self.new_lease(hit.blocks, hit.num_tokens)
        if self._enabled:
            self.claims.renew(choice, len(hit.whole) if hit.loads else None)

    def _load(self, choice: Choice, hit: Hit) -> None:
        """Blocks of its own for what it loads. They can be hit after the step, as those that it computes."""
        num_whole = len(hit.whole)
        choice.lease = self.new_lease(hit.whole, num_whole * self._block_size)
        if self.tier is None or choice.lease.append_slots(hit.num_tokens - choice.lease.num_slots) is None:
            raise RuntimeError(f"{choice.request_id} was admitted without the blocks for what it loads")
        self.tier.load(choice, hit.loads, choice.lease.table[num_whole:])
        choice.next_full = 0

    def publish(self, choice: Choice) -> bool:
        """Makes the blocks that are now full findable, moves its claim on, and gives back what is behind a window, if
        anything is."""
        choice.next_full = self._next_full(choice.computed)
        if self._enabled:
            choice.chain.extend(choice.tokens)
            choice.lease.publish(choice.chain, choice.computed)
            self.claims.renew(choice)
        return self._slides and choice.lease.slide(choice.computed)

    def let_go(self, choice: Choice) -> None:
        """Takes a choice's lease and claim away, and what it waits for. Idempotent."""
        if self.tier is not None:
            self.tier.take_back(choice.lease.table)
            self.tier.unwant(choice)
        choice.lease.release()
        self.claims.drop(choice)

    def _piece(self, tokens: Sequence[TokenId], start: int) -> tuple[TokenId, ...]:
        return tuple(tokens[start : start + self._block_size])

    def set_aside(self, choice: Choice) -> tuple[int, str]:
        """Takes a preempted choice's lease away. Returns how many of its tokens are kept for it, and why.

        What is kept stays where it is, and can be hit, until others need the block; then the tier stores it.
        """
        num_kept, why = self._swap_or_recompute(choice)
        if num_kept and not self._enabled:
            choice.chain.extend(choice.tokens)
            choice.lease.publish(choice.chain, choice.computed)
            own = self._own.setdefault(choice.request_id, set())
            own.update(choice.chain.keys[: num_kept // self._block_size])
        self.let_go(choice)
        return num_kept, why

    def _swap_or_recompute(self, choice: Choice) -> tuple[int, str]:
        num_blocks = choice.computed // self._block_size
        if self.tier is None or not num_blocks:
            return 0, ""
        if self.tier.closed is not None:
            return 0, f"recompute: the {self.tier.limits.name} tier is closed, {self.tier.closed}"
        if choice.owes_positions:
            return 0, "recompute: it still owes logprobs or hidden states of its prompt"
        if num_blocks > self.tier.limits.num_blocks:
            return 0, f"recompute: it has {num_blocks} full blocks, the tier {self.tier.limits.num_blocks}"
        num_tokens = num_blocks * self._block_size
        pays, why = swap_pays(self.tier.costs, num_blocks, num_tokens)
        return (num_tokens, f"swap: {why}") if pays else (0, f"recompute: {why}")

    def forget_own(self, request_id: RequestId) -> None:
        """A request is over. Blocks that it alone could find are blank now, and leave the tier."""
        for key in self._own.pop(request_id, ()):
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        entry = self.index.find(key)
        for block in [] if entry is None else [block for block in entry.blocks if block != NO_BLOCK]:
            self.index.forget(block)
            if not self.pool.refs[block]:
                self.pool.drop(block)
        if self.tier is not None:
            self.tier.drop(key)

    def _next_full(self, num_computed: int) -> int:
        return (num_computed // self._block_size + 1) * self._block_size

    # ---- pins ----

    def pin(self, wish: PinWish, room: int, now: float) -> tuple[tuple[Event, ...], PinOutcome]:
        """Pins a prefix where it is cached and there is room: what happened, and the pin, or what it takes, or why not.

        `room`: how many blocks pins may hold in all.
        """
        chain = self.new_chain(wish.namespace)
        chain.extend(wish.tokens)
        num_blocks, hit = len(chain.keys), self.index.match(chain)
        refused = self._why_no_pin(wish, num_blocks) or self._pin_too_large(wish, num_blocks, hit, room)
        if refused is not None:
            return (), refused
        if len(hit) < num_blocks:
            return (), PinOutcome(num_missing=(num_blocks - len(hit)) * self._block_size)
        num_tokens = num_blocks * self._block_size
        lease = self.new_lease(hit, num_tokens - 1)  # what its last token reads: the whole hit relies on that
        pin = Pin(wish.pin_id, wish.tenant, num_tokens, lease.num_blocks, now + wish.ttl_s)
        self.pins.add(pin, lease)
        return (PrefixPinned(now, pin.pin_id, pin.tenant, pin.num_blocks),), PinOutcome(pin)

    def _why_no_pin(self, wish: PinWish, num_blocks: int) -> PinOutcome | None:
        if not self._enabled:
            return PinOutcome(code="disabled", message="the prefix cache is off (--no-enable-prefix-caching)")
        if wish.pin_id in self.pins:
            return PinOutcome(code="duplicate_id", message=f"there is a pin {wish.pin_id!r} already")
        if not num_blocks:
            message = f"the prefix has {len(wish.tokens)} tokens, and only full blocks of {self._block_size} are kept"
            return PinOutcome(code="shorter_than_block", message=message)
        return None

    def _pin_too_large(
        self, wish: PinWish, num_blocks: int, hit: Sequence[CachedBlock], room: int
    ) -> PinOutcome | None:
        wanted, num_missing = set[BlockId](), 0
        for group, window in enumerate(self.groups.windows):
            first = self.groups.first_read(window, num_blocks * self._block_size - 1)
            wanted.update(entry.blocks[group] for entry in hit[first:])
            num_missing += num_blocks - max(first, len(hit))
        own = len(self.pins.blocks_of(wish.tenant) | wanted) + num_missing
        if own > wish.quota:
            message = f"{own} blocks would be pinned for this tenant, and {wish.quota} may be (--pin-quota)"
            return PinOutcome(code="pin_quota_exceeded", message=message)
        every = len(self.pins.blocks | wanted) + num_missing
        if every > room:
            message = (
                f"{every} of {self.pool.num_blocks} blocks would be pinned, and {room} may be: at most half, and no "
                f"more than leaves room for a request of the whole context and for those that run or wait"
            )
            return PinOutcome(code="no_room_to_pin", message=message)
        return None

    def unpin(self, pin_id: str, tenant: str | None, now: float) -> tuple[Event, ...] | None:
        """Lets go of this tenant's pin, or of anybody's; None where there is none. The blocks stay cached."""
        pin = self.pins.remove(pin_id, tenant)
        return None if pin is None else (PrefixUnpinned(now, pin_id, pin.tenant),)

    def expire_pins(self, now: float) -> tuple[Event, ...]:
        """Lets go of the pins whose time is up."""
        return tuple([PrefixUnpinned(now, pin.pin_id, pin.tenant, expired=True) for pin in self.pins.expire(now)])

    # ---- as a whole ----

    @property
    def num_leased(self) -> int:
        """Blocks that choices hold, and no pin does."""
        return self.pool.num_leased - self.pins.num_blocks

    def clear(self) -> bool:
        """Forgets every cached block and counts anew; False, and no change, while choices hold blocks. Pins stay."""
        if self.num_leased:
            return False
        for block in self.pool.drop_cached():
            self.index.forget(block)
        if self.tier is not None:
            self.tier.clear()
        self.queries = self.hits = self.tier_hits = 0
        return True

    def drain(self, now: float) -> list[Event]:
        """What became findable and what no longer is, since the last call, in order."""
        return self._note_changes(now, None if self.tier is None else self.tier.note_forgotten)

    def seal(self, now: float) -> tuple[list[Event], Transfers | None]:
        """The same for the plan in the making, with what it asks of the tier: to keep what this plan evicts."""
        if self.tier is None:
            return self.drain(now), None
        return self._note_changes(now, self.tier.offer), self.tier.seal()

    @property
    def unsaved(self) -> int:
        """Blocks that a tier which survives the process could be given, and takes."""
        return 0 if self.tier is None or self.tier.room() is Room.NEVER else len(self.tier.unsaved)

    def told(self, now: float) -> list[Event]:
        """The state of the tier, where it is not what it was when it was last told."""
        if self.tier is None:
            return []
        last, told = self._last_told, self.tier.told(now)
        if last is not None and replace(told, time_s=last.time_s) == last:
            return []
        self._last_told = told
        return [told]

    def _note_changes(self, now: float, gone: Callable[[CachedBlock, BlockId], object] | None) -> list[Event]:
        """The changes since the last call, as facts, each told to the tier first: `gone` takes what cannot be hit."""
        changes = self.index.drain()
        if self.tier is not None and gone is not None:
            for change in changes:
                if change.stored:
                    self.tier.note_published(change.entry)
                else:
                    gone(change.entry, change.block)
        return self._tell(changes, now)

    def _tell(self, changes: Iterable[IndexChange], now: float) -> list[Event]:
        """Changes as facts. What a sequence alone can find, without prefix caching, is nobody else's business."""
        events: list[Event] = []
        for change in changes if self._enabled else ():
            entry = change.entry
            if change.stored:
                parent = entry.parent.key if entry.parent else None
                events.append(BlockStored(now, entry.key, parent, len(entry.tokens)))
            else:
                self.history.note_evicted(entry.key, now)
                events.append(BlockEvicted(now, entry.key))
        return events
