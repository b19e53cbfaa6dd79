"""Judges proposals one after the other, without the format of replies."""

from collections.abc import Iterable

from service.domain.prism.amendments import Proposal, Revision, Rules
from service.domain.prism.revisions import _Judge
from service.domain.prism.schemas.tree import Schema
from service.domain.values.json_values import Json


def judged(
    proposals: Iterable[Proposal], schema: Schema, value: Json, rules: Rules | None = None
) -> Revision:
    """Returns what becomes of the proposals; each sees what those before it did."""
    judge = _Judge(schema, value, rules or Rules())
    for one in proposals:
        judge.hear(one)
    return judge.revision()
