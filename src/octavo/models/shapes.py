"""Which tensors a spec needs, and their shapes: the list that loaders check a checkpoint against."""

from octavo.models.spec import ModelSpec

TENSORS_PER_LAYER = 9


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape (rows first) of every tensor of the model, in the order of a forward pass."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab_size, spec.hidden_size)}
    layer = layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes.update({f"layers.{index}.{part}": shape for part, shape in layer.items()})
    shapes["output_norm"] = (spec.hidden_size,)
    if not spec.tied_output:
        shapes["output"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Part -> shape of the tensors of one layer, the same for all layers."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "attn_norm": (hidden,),
        "q": (query, hidden),
        "k": (key, hidden),
        "v": (key, hidden),
        "o": (hidden, query),
        "ffn_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
