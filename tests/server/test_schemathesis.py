"""schemathesis against the OpenAPI document: what it makes of that is answered as the document says.

No 5xx; statuses, types, headers and fields of answers that are told of; and what the document does not have is refused.
"""

from typing import Any

import schemathesis
from hypothesis import settings
from schemathesis.checks import positive_data_acceptance

from tests.server.described import DOCUMENT
from tests.server.site import PATIENCE_S, Site
from tests.server.test_fuzz import small  # noqa: F401

ENDLESS = "/octavo/v1/events"
"""A stream that goes on as long as somebody reads: `test_observing.py` does."""
API: Any = schemathesis.openapi.from_dict(DOCUMENT).exclude(path=ENDLESS)
UNTOLD = [positive_data_acceptance]
"""That fields must go together, as prompt and messages do not, no schema says."""


@API.parametrize()  # makes boundary values of all parameters first, which takes as long as all other collecting: once
@settings(max_examples=max(1, settings().max_examples // 30), deadline=None)
def test_the_document_is_true(case: Any, small: Site) -> None:  # noqa: F811
    case.call_and_validate(base_url=small.url, timeout=PATIENCE_S, excluded_checks=UNTOLD)
