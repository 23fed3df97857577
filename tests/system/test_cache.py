"""The prefix cache in front of the default model, as a chat uses it."""

import urllib.request

from tests.system.serving import MODEL, Served

BLOCK_SIZE = 16
UNIT = 4


def computed(server: Served) -> int:
    """Tokens that the engine has computed so far."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:iteration_tokens_total_sum")))


def test_the_next_turn_of_a_chat_computes_what_is_new(server: Served) -> None:
    """What turn 1 asked and what it was answered is found by turn 2, through the model's own chat template."""
    messages = [
        {
            "role": "system",
            "content": "You are a lighthouse keeper. You answer at length, and like to talk of the sea.",
        },
        {"role": "user", "content": "What did you see last night?"},
    ]
    chat = server.client().chat.completions
    first = chat.create(model=MODEL, messages=messages, max_tokens=60, temperature=0)
    text, usage = first.choices[0].message.content, first.usage
    assert text and usage and usage.completion_tokens > 2 * BLOCK_SIZE
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And what did you do then?"}]
    before = computed(server)
    second = chat.create(model=MODEL, messages=messages, max_tokens=1, temperature=0).usage
    assert second and second.prompt_tokens_details
    cached = second.prompt_tokens_details.cached_tokens or 0
    known = usage.prompt_tokens + usage.completion_tokens - 1
    assert known // BLOCK_SIZE * BLOCK_SIZE <= cached < known + UNIT, "all blocks that turn 1 filled, and no more"
    assert computed(server) - before == second.prompt_tokens - cached < second.prompt_tokens // 3
