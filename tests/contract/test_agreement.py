"""The native backend in float32 gives the reference's answers, whatever format the file is in."""

import pytest

from octavo.backends.cpu import CpuBackend, CpuModel
from octavo.backends.reference import ReferenceBackend
from octavo.core.sampling import SamplingParams
from octavo.loaders.dequant import dequantize
from tests.contract.driver import Run, step
from tests.contract.implementations import ISAS, MAX_MODEL_LEN, tiny_checkpoint
from tests.contract.test_backend import blocks, prompt

LOGPROB_ERROR = 2e-5
"""Float32 throughout, two layers of width 64: a few hundred roundings of 2^-24 on logits of size 4."""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weights", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_float32_logprobs_are_the_reference_s(isa: str, weights: str):
    assert worst_logprob(isa, weights, "float32") <= LOGPROB_ERROR


KV_ERRORS = {"float16": 6e-4, "int8": 2e-3}
"""What is rounded differs in its last bits, so that some of it falls to the other side. A float32 cache is 1.5e-3 and
2.4e-2 away. (For a bfloat16 one the native kernels round queries and weights as much as keys and values.)"""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_cache_dtype", KV_ERRORS)
def test_each_cache_format_means_what_the_reference_means_by_it(isa: str, kv_cache_dtype: str):
    assert worst_logprob(isa, "F32", kv_cache_dtype) <= KV_ERRORS[kv_cache_dtype]


def worst_logprob(isa: str, weights: str, kv_cache_dtype: str) -> float:
    """How far native logprobs are from the reference's, over a prompt in two chunks and a token after it."""
    checkpoint = tiny_checkpoint(weights, weights)
    sizes = {"num_blocks": 16, "block_size": 16, "max_model_len": MAX_MODEL_LEN}
    model = CpuModel.load(checkpoint, dtype="float32", isa=isa, num_threads=1)
    native = CpuBackend(model, kv_cache_dtype=kv_cache_dtype, **sizes)
    reference = ReferenceBackend(checkpoint, dequantize=dequantize, kv_cache_dtype=kv_cache_dtype, **sizes)
    params = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=1)
    ours, theirs = (Run("a", prompt(90), params, blocks(0)) for _ in range(2))
    step(native, [ours], 40)
    step(native, [ours])
    step(reference, [theirs])
    native.close()
    reference.close()
    both = zip(ours.scored + ours.generated, theirs.scored + theirs.generated, strict=True)
    return max(abs(one.logprob - other.logprob) for one, other in both if one.logprob and other.logprob)
