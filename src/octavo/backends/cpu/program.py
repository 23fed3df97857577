"""ModelSpec and packed weights -> the list of native operations that computes one step."""

from octavo.backends.cpu import _native
from octavo.backends.cpu.model import CpuModel
from octavo.models.layer_groups import layer_groups

LAYER_OPS = ("qkv", "attention", "o", "gate_up", "down")
"""What a layer adds to the program, in order. The embedding is before them all."""


def place_of(op: int) -> tuple[str, int | None]:
    """What operation number `op` of a program is, and of which layer."""
    layer, which = divmod(op - 1, len(LAYER_OPS))
    return (LAYER_OPS[which], layer) if op else ("embed", None)


def build_program(model: CpuModel) -> _native.Program:
    """The decoder of ModelSpec as a native program, without a cache.

    Norms are part of the product that reads them, SwiGLU of the product that makes its inputs, and residual additions
    of the products that end in them.
    """
    spec = model.spec
    program = _native.Program(
        model.isa,
        model.pool,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rope_dim=spec.rope.dim,
        scale=spec.attention_scale,
        inverse_frequencies=list(spec.rope.inverse_frequencies()),
    )
    hidden = program.buffer(spec.hidden_size)
    qkv = program.buffer((spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    attended = program.buffer(spec.num_heads * spec.head_dim)
    activated = program.buffer(spec.intermediate_size)
    program.embed(model.embed, hidden)
    for index, (layer, place) in enumerate(zip(model.layers, layer_groups(spec).places, strict=True)):
        program.matmul(hidden, layer.attn_norm, spec.norm_eps, layer.qkv, "store", qkv)
        program.attention(qkv, attended, place.group, spec.window(index) or 0)
        program.matmul(attended, None, 0.0, layer.o, "add", hidden)
        program.matmul(hidden, layer.ffn_norm, spec.norm_eps, layer.gate_up, "swiglu", activated)
        program.matmul(activated, None, 0.0, layer.down, "add", hidden)
    program.head(hidden, model.output_norm, spec.norm_eps, model.output)
    return program
