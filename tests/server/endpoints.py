"""All endpoints with a body, and what their fields do."""

from tests.server import dialect_effects, effects

ENDPOINTS = (*effects.ENDPOINTS, *dialect_effects.ENDPOINTS)
