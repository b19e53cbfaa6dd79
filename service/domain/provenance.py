"""Provenance: which revision a value of a PRISM memory came from."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.json_values import Json
from service.domain.paths import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """An amendment at a path, or above or below it."""

    revision: int
    path: Path
    value: Json


def origin(path: Path, value: Json, writes: Sequence[Write]) -> int | None:
    """The revision that first wrote what `path` holds now, `value`.

    `writes` are the amendments that touch `path`, newest first. A model that extends
    a list repeats what was there, so the newest write is not where the value came
    from: the search goes back as long as the older writes hold the value as well.
    None when no write holds it.
    """
    found: int | None = None
    for write in writes:
        if _holds(write, path, value):
            found = write.revision
        elif _covers(write.path, path):
            break
    return found


def _covers(upper: Path, lower: Path) -> bool:
    return lower.tokens[: len(upper.tokens)] == upper.tokens


def _holds(write: Write, path: Path, value: Json) -> bool:
    if _covers(path, write.path):
        return write.value == value
    rest = path.tokens[len(write.path.tokens) :]
    here: Json = write.value
    for token in rest[:-1]:
        here = _child(here, token)
    if not rest:
        return here == value
    # An element keeps being the same one when elements before it come or go.
    if isinstance(here, list):
        return value in here
    return _child(here, rest[-1]) == value


def _child(value: Json, token: str | int) -> Json:
    if isinstance(value, dict) and isinstance(token, str):
        return value.get(token)
    if isinstance(value, list) and isinstance(token, int) and token < len(value):
        return value[token]
    return None
