"""A prompt of 7,000 tokens through a budget of 16 a step, on the real model: it ends, and with the same tokens."""

import pytest

from octavo import LLM, SamplingParams


@pytest.mark.slow
def test_seven_thousand_tokens_through_a_budget_of_sixteen() -> None:
    prompt = {"prompt_token_ids": [100 + (i * 7919) % 40_000 for i in range(7000)]}
    short = {"prompt_token_ids": list(range(200, 212))}
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1)
    answers = []
    for budget in (16, 2048):
        with LLM(max_num_batched_tokens=budget, max_num_seqs=8, num_blocks=520) as llm:
            answers.append([one.outputs[0] for one in llm.generate([prompt, short], params, use_tqdm=False)])
    for small, large in zip(*answers, strict=True):
        assert len(small.token_ids) == 4 and small.token_ids == large.token_ids
        assert small.cumulative_logprob == large.cumulative_logprob
