"""Finds how long a provider asks us to wait, in headers, bodies or words."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from service.llm.providers.native import NativeAnswer

#: Characters of an error that are searched.
_LOOKED_AT = 4000


def delay_seconds(native: NativeAnswer, error: Exception) -> float | None:
    """Returns the seconds that a provider asks us to wait; None if it does not say."""
    headers = native.headers or getattr(error, "litellm_response_headers", None) or {}
    found = _of_headers({str(name).lower(): str(value) for name, value in headers.items()})
    if found is not None:
        return found
    # Gemini has it in the body, OpenAI and Azure in words.
    said = native.error or str(error)
    wait = re.search(
        r'"retryDelay":\s*"([0-9.hms]{1,20})"|(?:try again in|retry after)\s+([0-9.hms ]{1,20})',
        said[:_LOOKED_AT],
    )
    return None if wait is None else _seconds(wait[1] or wait[2])


def _of_headers(headers: Mapping[str, str]) -> float | None:
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    after = headers.get("retry-after")
    if after is not None:
        seconds = _number(after)
        return seconds if seconds is not None else _until(_date(after), headers)
    waits = []
    for kind in ("requests", "tokens"):
        if headers.get(f"x-ratelimit-remaining-{kind}") == "0":
            waits.append(_seconds(headers.get(f"x-ratelimit-reset-{kind}", "")))
    if headers.get("x-ratelimit-remaining") == "0":
        # OpenRouter's: milliseconds of the epoch.
        at = _number(headers.get("x-ratelimit-reset"))
        is_time = at is not None and 1e12 <= at < 1e13
        waits.append(
            _until(datetime.fromtimestamp((at or 0) / 1000, UTC), headers) if is_time else None
        )
    return max((one for one in waits if one is not None), default=None)


def _number(text: str | None) -> float | None:
    try:
        found = None if text is None else float(text)
    except ValueError:
        return None
    return found if found is None or 0 <= found < float("inf") else None


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _until(at: datetime | None, headers: Mapping[str, str]) -> float | None:
    """Returns the seconds until a time, by the provider's clock: ours may differ."""
    now = _date(headers.get("date", ""))
    return None if at is None or now is None else max((at - now).total_seconds(), 0.0)


#: Parts of a duration as "1m2.5s" or "350ms".
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|h|m|s)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def _seconds(text: str) -> float | None:
    parts = _DURATION.findall(text)
    return sum(float(count) * _UNITS[unit] for count, unit in parts) if parts else None
