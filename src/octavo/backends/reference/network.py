"""The decoder of ModelSpec, one token at a time, in float32: pure functions and one writer of KV.

One token at a time means that every product is a matrix times one vector of the same shape, whatever else is in the
batch, so nothing can choose another order of additions for another batch. The products are numpy's own loops and not
BLAS: those never depend on threads, and threads of BLAS that wait for a busy core are fifty times slower than none.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.backends.reference.kv import Cells, KvFormat
from octavo.backends.reference.weights import Array, Layer, Weights
from octavo.models.layer_groups import LayerPlace
from octavo.models.spec import ModelSpec
from octavo.models.windows import first_key


def token_hidden(
    spec: ModelSpec,
    weights: Weights,
    places: Sequence[LayerPlace],
    kv: KvFormat,
    cache: Cells,
    token: int,
    position: int,
    tables: NDArray[np.intp],
) -> Array:
    """The normalised last hidden state [hidden] of `token` at `position`; writes its KV into `cache`.

    places: where the KV of each layer lies. cache [slots, 2, num_blocks, block_size, kv_heads] of rows as `kv` keeps
    them: index 0 of the second axis is keys, 1 is values; a block is one KV group's, and slot i of it the i-th layer's
    of the group.
    tables [groups, table_len]: the KV of all earlier positions that a layer attends to is there already.
    """
    cos, sin = rotation(spec, position)
    hidden = weights.embed[token].copy()
    for index, (layer, place) in enumerate(zip(weights.layers, places, strict=True)):
        normed = rms_norm(hidden, layer.attn_norm, spec.norm_eps)
        blocks, window = tables[place.group], spec.window(index)
        attended = _attention(spec, layer, kv, cache[place.slot], normed, position, blocks, window, cos, sin)
        hidden += matvec(layer.o, attended)
        hidden += feed_forward(layer, rms_norm(hidden, layer.ffn_norm, spec.norm_eps))
    return rms_norm(hidden, weights.output_norm, spec.norm_eps)


def matvec(weight: Array, x: Array) -> Array:
    """weight [out, in], x [in] -> [out]."""
    return np.einsum("oi,i->o", weight, x)


def _attention(
    spec: ModelSpec,
    layer: Layer,
    kv: KvFormat,
    cache: Cells,
    normed: Array,
    position: int,
    blocks: NDArray[np.intp],
    window: int | None,
    cos: Array,
    sin: Array,
) -> Array:
    query = rotate(matvec(layer.q, normed).reshape(spec.num_heads, spec.head_dim), cos, sin)
    key = rotate(matvec(layer.k, normed).reshape(spec.num_kv_heads, spec.head_dim), cos, sin)
    value = matvec(layer.v, normed).reshape(spec.num_kv_heads, spec.head_dim)
    block_size = cache.shape[2]
    block, slot = blocks[position // block_size], position % block_size
    cache[0, block, slot] = kv.keep(key)
    cache[1, block, slot] = kv.keep(value)
    first = first_key(window, position)
    keys, values = (kv.read(cells) for cells in gather(cache, blocks, first, position + 1))
    return attend(query, keys, values, spec.attention_scale).reshape(-1)


def gather(cache: Cells, blocks: NDArray[np.intp], first: int, end: int) -> tuple[Cells, Cells]:
    """Keys and values of positions first .. end - 1 through the block table, each [end - first, kv_heads] rows."""
    size = cache.shape[2]
    used, skipped = blocks[first // size : -(-end // size)], first // size * size
    keys, values = (half[used].reshape(-1, *half.shape[2:])[first - skipped : end - skipped] for half in cache)
    return keys, values


def attend(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """Grouped-query attention of one token: query [heads, head_dim] -> [heads, head_dim].

    Query head h reads KV head h // (heads / kv_heads).
    """
    out = np.empty_like(query)
    group = len(query) // keys.shape[1]
    for head, row in enumerate(query):
        kv_head = head // group
        weights = softmax(matvec(keys[:, kv_head], row) * np.float32(scale))
        out[head] = np.einsum("p,pd->d", weights, values[:, kv_head])
    return out


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def feed_forward(layer: Layer, normed: Array) -> Array:
    """SwiGLU: down(silu(gate(x)) * up(x))."""
    return matvec(layer.down, silu(matvec(layer.gate, normed)) * matvec(layer.up, normed))


def silu(x: Array) -> Array:
    """x * sigmoid(x), without overflow: exp(-|x|) is at most 1."""
    small = np.exp(-np.abs(x))
    return (x * np.where(x >= 0, 1, small) / (1 + small)).astype(np.float32, copy=False)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean_square = float(np.mean(np.square(x), dtype=np.float64))
    return x * np.float32(1 / math.sqrt(mean_square + eps)) * weight


def rotation(spec: ModelSpec, position: int) -> tuple[Array, Array]:
    """cos and sin [rope.dim / 2] of the angles at `position`; the angles themselves in float64."""
    angles = position * np.array(spec.rope.inverse_frequencies())
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Half-split RoPE on [heads, head_dim]: dimension i turns with i + len(cos); what lies beyond stays."""
    half = len(cos)
    first, second = heads[:, :half], heads[:, half : 2 * half]
    rotated = heads.copy()
    rotated[:, :half] = first * cos - second * sin
    rotated[:, half : 2 * half] = second * cos + first * sin
    return rotated
