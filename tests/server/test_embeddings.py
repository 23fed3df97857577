"""POST /v1/embeddings: OpenAI's and vLLM's forms, vectors as the backend computes them, and a good neighbour."""

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from octavo.config.schema import Config, LimitsConfig, ModelConfig, SchedulerConfig, ServerConfig
from octavo.core.events import Admitted, Embedded, Finished, Queued, Stepped
from octavo.core.plan import HiddenSum, StepPlan, Work
from octavo.core.types import FinishReason
from octavo.models.checkpoint import Checkpoint
from octavo.server.metrics import Meters
from tests.server.site import BLOCK_SIZE, MAX_MODEL_LEN, PATIENCE_S, Gate, Site, as_, backend_of, running
from tests.server.test_connections import in_thread
from tests.server.test_metrics import exposition

HIDDEN_SIZE = 64
TEXTS = ["the an in of", "the", "of the an in of the an in of the an", "an"]
LONG = {"input": [[70 + i] * 40 for i in range(10)]}


def embed(site: Site, given: Any, **fields: Any) -> httpx.Response:
    return site.post("/v1/embeddings", {"input": given, **fields})


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return [each["embedding"] for each in data]


def error(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    return response.json()["error"]


def configured(**model: Any) -> Config:
    return Config(model=ModelConfig(model="tiny", **model), server=ServerConfig(port=0))


def hidden_states(checkpoint: Checkpoint, ids: Sequence[int]) -> np.ndarray:
    """Of each token, by the backend alone."""
    backend = backend_of(checkpoint)
    rows = []
    for position, token in enumerate(ids):
        table = tuple(range(-(-len(ids) // BLOCK_SIZE)))
        work = Work("a", 0, position, (token,), table, hidden_sum=HiddenSum(0))
        (result,) = backend.execute(StepPlan(position + 1, (work,))).results
        rows.append(np.frombuffer(result.hidden_sum or b""))
    backend.close()
    return np.array(rows)


def unit(vector: np.ndarray) -> list[float]:
    return (vector / np.linalg.norm(vector)).tolist()


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.DefaultHttpxClient(trust_env=False) as http:
        yield openai.OpenAI(
            base_url=f"{site.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, http_client=http
        )


def test_openai_s_client_gets_the_same_floats_in_both_formats_in_order(client: openai.OpenAI) -> None:
    """It asks for base64 unless told otherwise."""
    packed = client.embeddings.create(model="tiny", input=TEXTS)
    plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    assert [each.embedding for each in packed.data] == [each.embedding for each in plain.data]
    assert [each.index for each in packed.data] == [0, 1, 2, 3] and packed.object == "list"
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > len(TEXTS)
    for text, each in zip(TEXTS, packed.data, strict=True):
        (alone,) = client.embeddings.create(model="tiny", input=text).data
        assert alone.embedding == each.embedding and len(alone.embedding) == HIDDEN_SIZE
    with pytest.raises(openai.BadRequestError, match="dimensions must be an integer from 1 to 64"):
        client.embeddings.create(model="tiny", input="the", dimensions=65)


def test_vectors_are_the_backend_s_last_hidden_states(site: Site, checkpoint: Checkpoint) -> None:
    for text in TEXTS:
        (found,) = vectors(embed(site, text))
        assert found == pytest.approx(unit(hidden_states(checkpoint, site.tokenizer.encode(text))[-1]), abs=1e-6)


def test_a_server_may_be_set_to_means(checkpoint: Checkpoint) -> None:
    pooler = '{"pooling_type": "MEAN", "use_activation": false, "dimensions": 5}'
    with running(checkpoint, configured(pooler_config=pooler)) as site:
        ids = site.tokenizer.encode(TEXTS[0])
        mean = hidden_states(checkpoint, ids).mean(0)
        assert vectors(embed(site, ids)) == [pytest.approx(mean[:5], abs=1e-6)]
        whole = embed(site, ids, dimensions=HIDDEN_SIZE, use_activation=True)
        assert vectors(whole) == [pytest.approx(unit(mean), abs=1e-6)]
        details = embed(site, [ids, ids]).json()["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 0, "cache_miss_reason": "mean_pooling", "cache_miss_at": 0}


def test_the_four_forms_of_input_are_one(site: Site) -> None:
    ids = site.tokenizer.encode(TEXTS[0])
    forms = (TEXTS[0], TEXTS[:1], ids, [ids])
    assert len({str(vectors(embed(site, form))) for form in forms}) == 1


def test_base64_is_float32(site: Site) -> None:
    (packed,), (plain,) = vectors(embed(site, "the", encoding_format="base64")), vectors(embed(site, "the"))
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == plain


def test_dimensions_cut_and_then_the_vector_gets_its_length(site: Site) -> None:
    (raw,), (cut,) = vectors(embed(site, "the", use_activation=False)), vectors(embed(site, "the", dimensions=7))
    assert cut == pytest.approx(unit(np.array(raw[:7])), rel=1e-6)
    assert math.hypot(*raw) != pytest.approx(1)
    assert vectors(embed(site, "the", dimensions=7, normalize=False)) == [raw[:7]]


def test_a_conversation_is_its_rendered_text(site: Site) -> None:
    messages = [{"role": "user", "content": "the an"}, {"role": "assistant", "content": "in"}]
    for fields in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
        asked = {"messages": messages, "add_generation_prompt": False, **fields}
        ids = site.post("/tokenize", asked).json()["tokens"]
        answer = site.post("/v1/embeddings", {"messages": messages, **fields})
        assert vectors(answer) == vectors(embed(site, ids))
        assert answer.json()["usage"]["prompt_tokens"] == len(ids)


def test_an_answer_says_who_gave_it(site: Site) -> None:
    answer = embed(site, "the", request_id="mine", model="tiny").json()
    assert (answer["id"], answer["object"], answer["model"]) == ("embd-mine", "list", "tiny")
    assert answer["system_fingerprint"] == "tiny-reference"


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_input_may_fill_the_context_and_no_more(site: Site) -> None:
    assert vectors(embed(site, [70] * MAX_MODEL_LEN))
    told = error(embed(site, [[70], [70] * (MAX_MODEL_LEN + 1)]))
    assert (told["param"], told["code"]) == ("input", "context_length_exceeded")
    assert "maximum context length is 256" in told["message"] and "input 1 has 257" in told["message"]
    assert error(embed(site, "the an " * 5000))["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("side", "kept"), [(None, slice(-5, None)), ("left", slice(-5, None)), ("right", slice(5))])
def test_inputs_are_cut_where_that_is_asked_for(site: Site, side: str | None, kept: slice) -> None:
    ids = list(range(70, 90))
    cut = embed(site, ids, truncate_prompt_tokens=5, truncation_side=side)
    assert vectors(cut) == vectors(embed(site, ids[kept]))
    fits = embed(site, [70] * 300, truncate_prompt_tokens=-1)
    assert fits.json()["usage"]["prompt_tokens"] == MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input is required"),
        ({"input": ""}, "input", "input is empty"),
        ({"input": ["the", ""]}, "input", "input is empty"),
        ({"input": []}, "input", "none of them empty"),
        ({"input": [[1], []]}, "input", "none of them empty"),
        ({"input": [1, "the"]}, "input", "an array"),
        ({"input": [70, 10**6]}, "input", "token id 1000000"),
        ({"input": [-1]}, "input", "token id -1"),
        ({"input": "the", "messages": [{"role": "user", "content": "the"}]}, "input", "one of input and messages"),
        ({"input": "the", "add_generation_prompt": True}, "add_generation_prompt", "for messages"),
        ({"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True}, "add_special_tokens", "alone"),
        ({"messages": [{"role": "nobody"}]}, "messages[0].role", "role"),
        ({"input": "the", "use_activation": True, "normalize": False}, "normalize", "differs"),
        ({"input": "the", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1"),
        ({"input": "the", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": "the", "embed_dtype": "float16"}, "embed_dtype", "float32"),
        ({"input": "the", "cache_salt": ""}, "cache_salt", "non-empty"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(site: Site, body: Any, param: str, words: str) -> None:
    told = error(site.post("/v1/embeddings", body))
    assert told["param"] == param and words in told["message"]


def test_without_a_chat_template_there_are_no_conversations(checkpoint: Checkpoint) -> None:
    with running(checkpoint) as site:
        site.app.service.template = None
        told = error(site.post("/v1/embeddings", {"messages": [{"role": "user", "content": "the"}]}))
    assert told["param"] == "messages" and "no chat template" in told["message"]


def test_there_are_so_many_inputs_at_most(checkpoint: Checkpoint) -> None:
    with running(checkpoint, replace(configured(), limits=LimitsConfig(max_prompts=3))) as site:
        assert len(vectors(embed(site, TEXTS[:3]))) == 3
        assert "--max-prompts" in error(embed(site, TEXTS))["message"]


def test_unknown_fields_are_told(site: Site) -> None:
    answer = embed(site, "the", input_type="query", template={"a": 1})
    assert answer.headers["x-octavo-unknown-fields"] == "input_type,template" and vectors(answer)
    messages = [{"role": "user", "content": "the"}]
    answer = site.post("/v1/embeddings", {"messages": messages, "chat_template_kwargs": {"unread": 1}})
    assert answer.headers["x-octavo-unknown-fields"] == "chat_template_kwargs.unread"


def test_a_quota_counts_the_inputs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: {small: {keys: [small], tokens_per_minute: 100}}", encoding="utf-8")
    config = replace(configured(), server=ServerConfig(port=0, tenants=str(file)))
    with running(checkpoint, config) as site:
        ask = lambda count: site.post("/v1/embeddings", {"input": [[70] * count] * 2}, **as_("small"))  # noqa: E731
        assert error(ask(51))["code"] == "request_exceeds_quota"
        assert [ask(count).status_code for count in (30, 30, 15)] == [200, 429, 200]


# -- a good neighbour --------------------------------------------------------------------------------------------------


def idle(site: Site) -> bool:
    meters = site.app.service.meters
    return meters.num_followed == 0 and meters.gauges.num_running == meters.num_waiting == 0


@pytest.fixture
def narrow(checkpoint: Checkpoint) -> Iterator[tuple[Site, Gate]]:
    """Two slots, as the server knows; a step is computed when the gate lets it."""
    gate = Gate(backend_of(checkpoint))
    config = replace(configured(), scheduler=SchedulerConfig(max_num_seqs=2))
    with running(checkpoint, config, backend=gate, max_num_seqs=2) as site:
        yield site, gate
        gate.open()


def test_a_long_list_leaves_room_for_others(site: Site, narrow: tuple[Site, Gate]) -> None:
    """One input at a time is in the engine here, so a completion starts with the next step."""
    own, gate = narrow
    meters = own.app.service.meters
    listed = in_thread(lambda: own.post("/v1/embeddings", LONG))
    gate.let(2)
    own.until(lambda: meters.finished[FinishReason.STOP] == 2)
    other = in_thread(lambda: own.complete("the", max_tokens=2, ignore_eos=True))
    own.until(lambda: own.app.service.doorway.num_waiting_tokens > 40)
    gate.let(3)
    assert other().status_code == 200 and meters.finished[FinishReason.STOP] <= 5
    gate.open()
    assert vectors(listed()) == vectors(site.post("/v1/embeddings", LONG))


def test_work_ends_with_its_connection(narrow: tuple[Site, Gate]) -> None:
    site, gate = narrow
    with site.opened("/v1/embeddings", LONG):
        gate.let(2)
        site.until(lambda: site.app.service.meters.finished[FinishReason.STOP] == 2)
    site.until(lambda: site.app.service.duty.in_flight == 0)
    gate.open()
    site.until(lambda: idle(site))
    finished = site.app.service.meters.finished
    assert finished[FinishReason.ABORT] <= 1 and finished[FinishReason.STOP] <= 3


def test_a_failed_step_is_an_error_of_the_whole_list(narrow: tuple[Site, Gate]) -> None:
    site, gate = narrow
    gate.failure = RuntimeError("the kernel tripped")
    gate.open()
    answer = site.post("/v1/embeddings", LONG)
    assert answer.status_code == 500 and "the kernel tripped" in answer.json()["error"]["message"]
    site.until(lambda: idle(site))
    assert len(vectors(site.post("/v1/embeddings", LONG))) == 10


# -- what is told of it ------------------------------------------------------------------------------------------------


def test_an_embedding_is_counted_with_its_prompt_and_no_token() -> None:
    meters = Meters()
    for event in (
        Queued("e", 1.0, 30, tenant="t"),
        Admitted("e", 0, 2.0, 8),
        Embedded("e", 4.0, b"", 1),
        Finished("e", 0, 4.0, FinishReason.STOP),
        Stepped(4.0, 1, 0, 0, 22, 1, 2, 3, {}),
    ):
        meters.on_event(event)
    found = exposition(meters)
    assert found["vllm:request_success_total", "stop"] == 1
    assert found["vllm:prompt_tokens_total", "m"] == 30 == found["octavo:tenant_prompt_tokens_total", "t"]
    assert found["vllm:prompt_tokens_cached_total", "m"] == 8
    assert found["vllm:generation_tokens_total", "m"] == found["vllm:request_generation_tokens_sum", "m"] == 0
    assert found["vllm:e2e_request_latency_seconds_sum", "m"] == 3
    assert found["vllm:request_prefill_time_seconds_sum", "m"] == 2
    of_tokens = ("time_to_first_token", "inter_token_latency", "request_time_per_output_token", "request_decode_time")
    assert [found[f"vllm:{name}_seconds_count", "m"] for name in of_tokens] == [0] * 4
    assert found["vllm:request_params_max_tokens_count", "m"] == 0 and meters.num_followed == 0


def test_a_server_counts_what_it_embedded(checkpoint: Checkpoint) -> None:
    with running(checkpoint) as site:
        usage = embed(site, TEXTS).json()["usage"]
        assert site.metric("vllm:request_success_total", finished_reason="stop") == len(TEXTS)
        assert site.metric("vllm:prompt_tokens_total") == usage["prompt_tokens"]
        assert site.metric("vllm:time_to_first_token_seconds_count") == 0
        assert site.metric("http_requests_total", handler="/v1/embeddings") == 1


@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_what_became_of_it_can_be_asked(checkpoint: Checkpoint, pooling: str) -> None:
    with running(checkpoint, configured(pooler_config=f'{{"pooling_type": "{pooling}"}}')) as site:
        answer = embed(site, TEXTS[:2])
        shown = site.http.get(f"/octavo/v1/requests/{answer.json()['id']}").json()
    assert [each["state"] for each in shown["requests"]] == ["finished"] * 2
    assert "embedded" in [moment["kind"] for moment in shown["requests"][0]["timeline"]]
