"""ModelSpec: a decoder network as data. One decoder for each backend reads it; there is no code for each model."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding in the half-split form: dimension i goes with i + dim / 2 (RoFormer, as GPT-NeoX)."""

    dim: int
    """Rotated dimensions of each head, even, from the first on."""
    theta: float = 10000.0
    divisors: tuple[float, ...] | None = None
    """dim / 2 numbers that divide the plain frequencies (Llama 3 or linear scaling, GGUF's rope_freqs); None: all 1."""

    def inverse_frequencies(self) -> tuple[float, ...]:
        """dim / 2 angles for each position step, in radians."""
        divisors = self.divisors or (1.0,) * (self.dim // 2)
        return tuple(self.theta ** (-2 * i / self.dim) / d for i, d in enumerate(divisors))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Pre-norm decoder: RMSNorm, rotary grouped-query attention, gated feed-forward.

    Tensor names (see `models.tensors`) and shapes, rows first, as stored by Hugging Face:

        embed [vocab, hidden]   output_norm [hidden]   output [vocab, hidden] (absent where tied)
        layers.N.attn_norm [hidden]   .q [heads * head_dim, hidden]   .k .v [kv_heads * head_dim, hidden]
                .o [hidden, heads * head_dim]
        layers.N.ffn_norm [hidden]    .gate .up [intermediate, hidden]   .down [hidden, intermediate]
    """

    architecture: str
    """As the checkpoint calls it, for messages."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    max_model_len: int
    """Positions that the model was trained for."""
    tied_output: bool = False
    """The output head is the embedding table."""
    activation: str = "silu"
    windows: tuple[int | None, ...] = ()
    """Of each layer: a token attends to itself and the window - 1 tokens before it; None: to all before it.
    Empty: all layers have full attention."""

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    @property
    def attention_scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def kv_rows_per_token(self) -> int:
        """Rows of head_dim numbers that one token adds to the KV cache of one layer."""
        return 2 * self.num_kv_heads
