"""Philox4x32-10, the counter-based random number generator of the sampler, written out.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

Words4 = tuple[int, int, int, int]
Words2 = tuple[int, int]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: Words4, key: Words2) -> Words4:
    """Four random 32-bit words that depend on `counter` and `key` alone."""
    for _ in range(_ROUNDS):
        counter = _round(counter, key)
        key = ((key[0] + _WEYL[0]) & _MASK, (key[1] + _WEYL[1]) & _MASK)
    return counter


def _round(counter: Words4, key: Words2) -> Words4:
    left = _MULTIPLIERS[0] * counter[0]
    right = _MULTIPLIERS[1] * counter[2]
    return (
        (right >> 32) ^ counter[1] ^ key[0],
        right & _MASK,
        (left >> 32) ^ counter[3] ^ key[1],
        left & _MASK,
    )


def uniform(seed: int, choice: int, index: int) -> float:
    """The number in [0, 1) that draws token `index` of `choice`: a multiple of 2**-24, so exact in float32 too."""
    word = philox4x32((index & _MASK, choice & _MASK, 0, 0), (seed & _MASK, seed >> 32 & _MASK))[0]
    return (word >> 8) * 2.0**-24
