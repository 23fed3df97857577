"""What tests make of an answer does not depend on when it came."""

import httpx

from tests.server.effects import Answered

EVENTS = {"content-type": "text/event-stream"}


def test_a_stream_that_begins_with_a_sign_of_life_is_read_like_others() -> None:
    plain = 'data: {"choices": [], "usage": {"completion_tokens": 0}}\n\ndata: [DONE]\n\n'
    named = (
        "event: message_start\n"
        'data: {"type": "message_start", "message": {"content": [], "stop_reason": null, "usage": {}}}\n\n'
        'event: message_delta\ndata: {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 0}}\n\n'
        'event: message_stop\ndata: {"type": "message_stop"}\n\n'
    )
    for text in (plain, named):
        whole, late = (
            Answered.of(httpx.Response(200, headers=EVENTS, text=start + text)) for start in ("", ": wait\n\n")
        )
        assert late.chunks == whole.chunks and late.body == whole.body
