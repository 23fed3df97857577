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
    checkpoint = tiny_checkpoint(weights, weights)
    sizes = {"num_blocks": 16, "block_size": 16, "max_model_len": MAX_MODEL_LEN}
    model = CpuModel.load(checkpoint, dtype="float32", isa=isa, num_threads=1)
    native = CpuBackend(model, kv_cache_dtype="float32", **sizes)
    reference = ReferenceBackend(checkpoint, dequantize=dequantize, **sizes)
    params = SamplingParams(temperature=0, logprobs=1, prompt_logprobs=1)
    ours, theirs = (Run("a", prompt(90), params, blocks(0)) for _ in range(2))
    step(native, [ours], 40)
    step(native, [ours])
    step(reference, [theirs])
    for one, other in zip(ours.scored + ours.generated, theirs.scored + theirs.generated, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=LOGPROB_ERROR)
    native.close()
    reference.close()
