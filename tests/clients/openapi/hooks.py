"""What schemathesis does not send: `null`, by which protobuf's JSON leaves a field unset."""

from typing import Any

import schemathesis  # type: ignore[import-not-found]  # It has an environment of its own.


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_null(one) for one in value.values())
    if isinstance(value, list):
        return any(_has_null(one) for one in value)
    return value is None


@schemathesis.hook  # type: ignore[untyped-decorator]
def filter_case(_: Any, case: Any) -> bool:
    """Returns whether a case is tried."""
    return not _has_null(case.body) and not _has_null(case.query)
