"""The laws of the allocator and the scheduler, executable: run after every move in tests, and when a server is idle.

Each law is a generator of violations: sentences that name the block or the choice and both sides of what differs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from octavo.core.backlog import Demand
from octavo.core.choice import Choice
from octavo.core.pins import room_for_pins
from octavo.core.plan import Work
from octavo.core.prefix import CachedBlock, same_prefix
from octavo.core.request import ChoiceState
from octavo.core.scheduler import Scheduler
from octavo.core.tiers import TierState
from octavo.core.types import NO_BLOCK, BlockId

Law = Callable[[Scheduler], Iterator[str]]


def audit(scheduler: Scheduler) -> tuple[str, ...]:
    """Every violation of every law, in the order of LAWS; empty where all is well. Changes nothing."""
    return tuple(f"{law.__name__}: {violation}" for law in LAWS for violation in law(scheduler))


def blocks_add_up(scheduler: Scheduler) -> Iterator[str]:
    """Blank, cached, leased and pinned blocks are disjoint, and together they are the pool."""
    pool = scheduler.cache.pool
    leased = [block for block, refs in enumerate(pool.refs) if refs]
    states = Counter((*pool.blank(), *pool.cached(), *leased))
    for block in range(pool.num_blocks):
        if states[block] != 1:
            yield f"block {block} is in {states[block]} states"
    load = scheduler.load()
    if (total := load.blocks_blank + load.blocks_cached + load.blocks_leased + load.blocks_pinned) != pool.num_blocks:
        yield f"{total} blocks are counted in a pool of {pool.num_blocks}"


def reservations_add_up(scheduler: Scheduler) -> Iterator[str]:
    """What is promised is what running choices have reserved; only free blocks are reserved."""
    pool = scheduler.cache.pool
    reserved = sum(choice.lease.num_reserved for choice in scheduler.roster.running)
    if reserved != pool.num_promised:
        yield f"{pool.num_promised} blocks are promised, and running choices have reserved {reserved}"
    if any(choice.lease.num_reserved < 0 for choice in scheduler.roster.running):
        yield "a choice has reserved fewer than no blocks"
    if not 0 <= pool.num_reserved <= pool.num_free:
        yield f"{pool.num_reserved} blocks are reserved of {pool.num_free} free ones"


def counts_are_holders(scheduler: Scheduler) -> Iterator[str]:
    """A block's reference count is the number of choices and pins that hold it; each holds a block once."""
    holders: Counter[BlockId] = Counter()
    for choice in _all_choices(scheduler):
        held = [block for block in choice.lease.table if block != NO_BLOCK]
        holders.update(held)
        if len(set(held)) != len(held) or len(held) != choice.lease.num_blocks:
            yield f"{_name(choice)} holds a block twice, or counts wrongly: {choice.lease.table}"
    for lease in scheduler.cache.pins.leases():
        holders.update(block for block in lease.table if block != NO_BLOCK)
    for block, refs in enumerate(scheduler.cache.pool.refs):
        if refs != holders[block]:
            yield f"block {block} counts {refs} holders and has {holders[block]}"


def index_and_blocks_are_inverse(scheduler: Scheduler) -> Iterator[str]:
    """Every findable entry has its blocks and every block its entry; cached means findable and not held."""
    index, pool = scheduler.cache.index, scheduler.cache.pool
    findable = [(block, entry) for entry in index.entries() for block in entry.blocks if block != NO_BLOCK]
    if len({block for block, _ in findable}) != len(findable):
        yield "two keys name the same block"
    for entry in index.entries():
        if all(block == NO_BLOCK for block in entry.blocks):
            yield f"the entry of {entry.tokens} has no block"
    for block, entry in findable:
        if index.entry_of(block) is not entry:
            yield f"the entry of block {block} is another's"
    free = {block for block, _ in findable if not pool.refs[block]}
    if free != set(pool.cached()):
        yield f"blocks {sorted(free)} can be hit and are free, but {sorted(pool.cached())} are cached"


def entries_are_full(scheduler: Scheduler) -> Iterator[str]:
    """A findable block is full, and only what has been computed is findable."""
    size = scheduler.limits.block_size
    for entry in scheduler.cache.index.entries():
        if len(entry.tokens) != size:
            yield f"blocks {entry.blocks} can be hit with {len(entry.tokens)} of {size} tokens"
    for choice in scheduler.roster.running:
        for group, table in enumerate(_tables(scheduler, choice.lease.table)):
            yield from _check_entries(scheduler, choice, group, table)


def _check_entries(scheduler: Scheduler, choice: Choice, group: int, table: Sequence[BlockId]) -> Iterator[str]:
    size, index = scheduler.limits.block_size, scheduler.cache.index
    due: CachedBlock | None = None
    for logical, block in enumerate(table[: choice.computed // size]):
        due = CachedBlock(b"", tuple(choice.tokens[logical * size : (logical + 1) * size]), due, [])
        entry = index.entry_of(block)
        if entry is not None:
            if not same_prefix(entry, due) or entry.blocks[group] != block:
                yield f"{_name(choice)} holds block {block} of another prefix or group"
            due = entry
    for block in table[choice.computed // size :]:
        if index.holds(block):
            yield f"{_name(choice)} holds findable block {block} with only {choice.computed} tokens computed"


def windows_are_held(scheduler: Scheduler) -> Iterator[str]:
    """A running choice holds what its next token reads, in each group, and of what lies before at most the rest of a
    block's worth of tokens; its tables are equally long."""
    groups = scheduler.cache.groups
    for choice in scheduler.roster.running:
        table_len, rest = divmod(len(choice.lease.table), groups.num_groups)
        if rest or table_len < groups.blocks_for(choice.computed):
            yield f"{_name(choice)} has tables of {len(choice.lease.table)} blocks for {choice.computed} tokens"
        last_full = choice.computed // groups.block_size * groups.block_size
        for window, table in zip(groups.windows, _tables(scheduler, choice.lease.table), strict=True):
            if NO_BLOCK in table[groups.first_read(window, choice.computed) :]:
                yield f"{_name(choice)} lacks a block within its window of {window}: {table}"
            if any(block != NO_BLOCK for block in table[: groups.first_read(window, last_full)]):
                yield f"{_name(choice)} holds blocks behind its window of {window}: {table}"


def writes_are_exclusive(scheduler: Scheduler) -> Iterator[str]:
    """No plan writes a block that two leases share or that can be hit, and no copy reads what an earlier one wrote."""
    plan = scheduler.in_flight
    if plan is None:
        return
    size, written = scheduler.limits.block_size, set[BlockId]()
    for copy in plan.copies:
        if copy.source in written:
            yield f"block {copy.source} is copied after it was overwritten"
        written.add(copy.target)
    for load in plan.transfers.loads if plan.transfers else ():
        if load.block in written:
            yield f"block {load.block} is loaded and also copied into, or loaded twice"
        written.add(load.block)
    for work in plan.work:
        if not _is_live(scheduler, work):
            continue
        end = work.start + len(work.tokens)
        for table in _tables(scheduler, work.block_ids):
            for block in table[work.start // size : (end - 1) // size + 1]:
                if block == NO_BLOCK or scheduler.cache.pool.refs[block] != 1 or scheduler.cache.index.holds(block):
                    yield f"{work.request_id} writes block {block}, which others rely on"
            if len(table) * size < end:
                yield f"{work.request_id} writes up to {end} in {len(table)} blocks"


def steps_keep_their_budgets(scheduler: Scheduler) -> Iterator[str]:
    """No plan has more tokens, choices or half-computed prompts, or a longer chunk, than the limits allow."""
    plan, limits = scheduler.in_flight, scheduler.limits
    if plan is None:
        return
    partial = sum(1 < choice.num_left != choice.granted for choice in scheduler.roster.running)
    longest = max((len(work.tokens) for work in plan.work), default=0)
    for what, count, limit in (
        ("tokens", plan.num_tokens, limits.max_num_batched_tokens),
        ("choices", len(plan.work), limits.max_num_seqs),
        ("half-computed prompts", partial, limits.max_num_partial_prefills),
        ("tokens for one choice", longest, limits.long_prefill_token_threshold or longest),
    ):
        if count > limit:
            yield f"step {plan.step} has {count} {what}, at most {limit} are allowed"


def sharing_is_of_equals(scheduler: Scheduler) -> Iterator[str]:
    """Leases that share a block agree on every token up to its end, or to the end of the shorter one's tail."""
    size = scheduler.limits.block_size
    first: dict[BlockId, tuple[Choice, tuple[int, int]]] = {}
    for choice in scheduler.roster.running:
        tables = _tables(scheduler, choice.lease.table)
        places = [((g, i), block) for g, table in enumerate(tables) for i, block in enumerate(table)]
        for place, block in places:
            other, its_place = first.setdefault(block, (choice, place))
            if other is choice or block == NO_BLOCK:
                continue
            end = min((place[1] + 1) * size, choice.computed, other.computed)
            if its_place != place or other.tokens[:end] != choice.tokens[:end]:
                yield f"{_name(other)} and {_name(choice)} share block {block} and differ before {end}"


def life_cycle_is_kept(scheduler: Scheduler) -> Iterator[str]:
    """Each choice is where its state says, in order, and only running ones hold blocks."""
    roster = scheduler.roster
    queues = (roster.running, roster.waiting, roster.held)
    places = {
        ChoiceState.HELD: roster.held,
        ChoiceState.RUNNING: roster.running,
        ChoiceState.FOLLOWING: None,
        ChoiceState.FINISHED: None,
    }
    for choice in _all_choices(scheduler):
        place = places.get(choice.state, roster.waiting)
        if any((choice in queue) != (queue is place) for queue in queues):
            yield f"{_name(choice)} is {choice.state} and in the wrong queue"
        if choice.state is not ChoiceState.RUNNING and choice.lease.table:
            yield f"{_name(choice)} is {choice.state} and holds {choice.lease.table}"
    for queue in (scheduler.roster.running, scheduler.roster.waiting):
        if any(a.order >= b.order for a, b in pairwise(queue)):
            yield "a queue is out of order"
    if (width := sum(choice.width for choice in scheduler.roster.running)) > scheduler.limits.max_num_seqs:
        yield f"{width} choices run, at most {scheduler.limits.max_num_seqs} may"


def demands_add_up(scheduler: Scheduler) -> Iterator[str]:
    """What is counted for the queue is what those want who wait or are held, of each tenant and of all."""
    waiting = (*scheduler.roster.waiting, *scheduler.roster.held)
    demands = scheduler.roster.demands
    for tenant in {choice.request.tenant for choice in waiting}:
        own = [choice.demand for choice in waiting if choice.request.tenant == tenant]
        if demands.of(tenant) != (due := Demand(len(own), sum(own))):
            yield f"tenant {tenant!r} is counted with {demands.of(tenant)} in the queue, and has {due}"
    due = Demand(len(waiting), sum(choice.demand for choice in waiting))
    if demands.total != due:
        yield f"the queue is counted with {demands.total}, and has {due}"


def tokens_are_within_bounds(scheduler: Scheduler) -> Iterator[str]:
    """A running choice has computed fewer tokens than it knows, unless it is a beam that waits for others; it has slots
    for just those and the granted ones."""
    for choice in scheduler.roster.running:
        waits = choice.beams is not None and choice.awaits_others
        if not 0 <= choice.computed < len(choice.tokens) + waits <= choice.max_len + waits:
            yield f"{_name(choice)} computed {choice.computed} of {len(choice.tokens)} tokens, limit {choice.max_len}"
        if choice.lease.num_slots != choice.computed + choice.granted:
            yield f"{_name(choice)} has {choice.lease.num_slots} slots for {choice.computed} + {choice.granted} tokens"
        if choice.granted and scheduler.in_flight is None:
            yield f"{_name(choice)} is granted {choice.granted} tokens and no step is in flight"


def nobody_draws_for_the_finished(scheduler: Scheduler) -> Iterator[str]:
    """Each choice that follows is drawn for by one other; each one that runs or waits draws for itself too."""
    for choices in scheduler.roster.requests.values():
        if choices[0].beams is not None:
            continue
        following = [choice.index for choice in choices if choice.state is ChoiceState.FOLLOWING]
        for place, choice in enumerate(choices):
            if choice.index != place:
                yield f"{_name(choice)} is in the place of choice {place}"
            if choice.state in (ChoiceState.FOLLOWING, ChoiceState.FINISHED):
                continue
            due = tuple(sorted((choice.index, *following)))
            if choice.draws_for != due or choice.width != len(due):
                yield f"{_name(choice)} draws for {choice.draws_for}, and choices {following} follow"


def what_is_owed_is_computed(scheduler: Scheduler) -> Iterator[str]:
    """No position is skipped that still owes a logprob or a hidden state; and an embedding has nothing but its prompt,
    and a sum where something was added to it."""
    for choice in _all_choices(scheduler):
        if choice.owes_positions and choice.computed > choice.noted:
            yield f"{_name(choice)} has computed {choice.computed} tokens, and what is owed for {choice.noted} of them"
        if choice.request.pooling is None or choice.state is ChoiceState.FINISHED:
            continue
        if len(choice.tokens) != choice.prompt_len or choice.noted >= choice.prompt_len:
            yield f"{_name(choice)} is an embedding and goes on after its prompt"
        if bool(choice.total) != (choice.noted > choice.prompt_len - choice.num_summed):
            yield f"{_name(choice)} has a sum of {len(choice.total)} bytes, and {choice.noted} positions noted"


def beams_keep_step(scheduler: Scheduler) -> Iterator[str]:
    """The seats of a search hold its live beams, all of one length; and wait for others just where candidates are."""
    for choices in scheduler.roster.requests.values():
        beams = choices[0].beams
        if beams is None:
            continue
        if sorted(seat.index for seat in beams.seats) != list(range(len(choices))):
            yield f"{choices[0].request_id} has lost a seat"
        for seat, beam in zip(beams.seats, beams.search.live, strict=False):
            due = [*seat.request.prompt, *(scored.token for scored in beam.tokens())]
            if seat.tokens != due:
                yield f"{_name(seat)} has {seat.tokens}, its beam {due}"
            waits = seat.state is ChoiceState.FOLLOWING or seat.awaits_others
            if waits != (seat.index in beams.found):
                yield f"{_name(seat)} is {seat.state}, {seat.computed} computed; {sorted(beams.found)} have candidates"
        for seat in beams.seats[len(beams.search.live) :]:
            if seat.state is not ChoiceState.FOLLOWING:
                yield f"{_name(seat)} is {seat.state} and has no beam"


def claims_are_live(scheduler: Scheduler) -> Iterator[str]:
    """Whoever claims to compute a block is running, and says so itself."""
    for key, choice in scheduler.cache.claims.by_key.items():
        if choice.claim != key or choice.state is not ChoiceState.RUNNING:
            yield f"{_name(choice)} is {choice.state} and still claims a block"


def what_was_found_is_there(scheduler: Scheduler) -> Iterator[str]:
    """Who waits finds what it would find if it had never looked before."""
    index = scheduler.cache.index
    for choice in scheduler.roster.waiting:
        found, anew = index.match(choice.chain), index.match(choice.chain.fork())
        if found != anew:
            yield f"{_name(choice)} finds {len(found)} blocks, and {len(anew)} others if it looks anew"


def pins_leave_room(scheduler: Scheduler) -> Iterator[str]:
    """What is pinned can be hit, and whoever was accepted could finish alone beside it."""
    cache = scheduler.cache
    for block in cache.pins.blocks:
        if not cache.pool.refs[block] or not cache.index.holds(block):
            yield f"block {block} is pinned, and {cache.pool.refs[block]} hold it or it cannot be hit"
    if cache.pins.num_blocks > (room := room_for_pins(scheduler.limits, scheduler.roster)):
        yield f"{cache.pins.num_blocks} blocks are pinned, and there is room for {room}"


def tier_adds_up(scheduler: Scheduler) -> Iterator[str]:
    """The tier's blocks are within its bounds and counted by state; only waiting choices want any of them."""
    tier = scheduler.cache.tier
    if tier is None:
        return
    states = Counter(entry.state for entry in tier.blocks.values())
    due = {key for key, entry in tier.blocks.items() if entry.written and entry.buffer is None}
    for what, counted, actual in (
        ("being stored", tier.num_storing, sum(not entry.written for entry in tier.blocks.values())),
        ("in buffers", tier.num_staged, states[TierState.LOADING] + states[TierState.LOADED]),
        ("being fetched", len(tier.loading), states[TierState.LOADING]),
    ):
        if counted != actual:
            yield f"{counted} blocks of the tier are counted as {what}, {actual} are"
    for what, count, limit in (
        ("blocks", len(tier.blocks), tier.limits.num_blocks),
        ("blocks being stored", tier.num_storing, tier.limits.num_storing),
        ("blocks in buffers", tier.num_staged, tier.limits.num_staged),
    ):
        if count > limit:
            yield f"the tier has {count} {what}, at most {limit} are allowed"
    if due != set(tier.evictable):
        yield "what the tier may drop is not what is stored and in no buffer"
    for key, entry in tier.blocks.items():
        if entry.content.key != key:
            yield "a block of the tier is under another's key"
        for owner in entry.owners:
            if owner not in scheduler.roster.waiting:
                yield "somebody who does not wait wants a block of the tier"


def waits_are_timed(scheduler: Scheduler) -> Iterator[str]:
    """Of each choice that waits it is known for what and since when; of none that runs."""
    roster, waits = scheduler.roster, scheduler.waits
    for choice in (*roster.waiting, *roster.held):
        if not waits.times(choice):
            yield f"{_name(choice)} waits, and its time is not taken"
    for choice in roster.running:
        if waits.times(choice) and choice.state is ChoiceState.RUNNING:
            yield f"{_name(choice)} runs, and is said to wait for {waits.lacks(choice)}"


LAWS: tuple[Law, ...] = (
    blocks_add_up,
    reservations_add_up,
    counts_are_holders,
    index_and_blocks_are_inverse,
    entries_are_full,
    windows_are_held,
    writes_are_exclusive,
    steps_keep_their_budgets,
    sharing_is_of_equals,
    life_cycle_is_kept,
    demands_add_up,
    tokens_are_within_bounds,
    nobody_draws_for_the_finished,
    what_is_owed_is_computed,
    beams_keep_step,
    claims_are_live,
    what_was_found_is_there,
    pins_leave_room,
    tier_adds_up,
    waits_are_timed,
)


def _all_choices(scheduler: Scheduler) -> Iterator[Choice]:
    for choices in scheduler.roster.requests.values():
        yield from choices


def _tables(scheduler: Scheduler, block_ids: tuple[BlockId, ...]) -> list[tuple[BlockId, ...]]:
    """The table of each group."""
    num_groups = scheduler.cache.groups.num_groups
    table_len = len(block_ids) // num_groups
    return [block_ids[group * table_len : (group + 1) * table_len] for group in range(num_groups)]


def _is_live(scheduler: Scheduler, work: Work) -> bool:
    choices = scheduler.roster.requests.get(work.request_id)
    return choices is not None and choices[work.choice].state is ChoiceState.RUNNING


def _name(choice: Choice) -> str:
    return f"{choice.request_id}/{choice.index}"
