"""Etags: whether a resource is as a client has read it."""

import hashlib
import json

from service.domain.values.json_values import Json

#: Characters of an etag.
_LENGTH = 24


def etag_of(*parts: Json) -> str:
    """Returns the same text for the same parts, and another one for others."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
