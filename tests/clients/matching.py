"""What scripts expect of results, and the names within their texts."""

import re
from collections.abc import Mapping
from typing import Any

#: A name that is replaced.
_NAME = re.compile(r"\$\{(\w+)\}")


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Returns a value of a script with its names replaced, and what repeats written out.

    A name that is the whole text is replaced by the value itself. Raises KeyError.
    """
    if isinstance(value, str):
        whole = _NAME.fullmatch(value)
        if whole:
            return names[whole[1]]
        return _NAME.sub(lambda found: str(names[found[1]]), value)
    if isinstance(value, Mapping) and "$text" in value:
        return "".join(_repeated(value, "$text", names))
    if isinstance(value, Mapping):
        return {filled(key, names): filled(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [item for one in value for item in _items(one, names)]
    return value


def _items(value: Any, names: Mapping[str, Any]) -> list[Any]:
    if not isinstance(value, Mapping) or "$repeat" not in value:
        return [filled(value, names)]
    return _repeated(value, "$repeat", names)


def _repeated(value: Mapping[str, Any], count: str, names: Mapping[str, Any]) -> list[Any]:
    first = value.get("from", 1)
    numbers = range(first, first + value[count])
    return [filled(value["item"], {**names, "n": number}) for number in numbers]


def difference(expected: Any, found: Any, at: str = "result") -> str:
    """Returns where `found` is not as expected, in a sentence; empty: it is.

    Objects may have more than is expected, lists are compared whole.
    """
    if isinstance(expected, Mapping):
        check = next((key for key in expected if key.startswith("$")), None)
        if check is not None:
            return "" if _holds(check, expected[check], found) else _says(at, expected, found)
        if not isinstance(found, Mapping):
            return _says(at, expected, found)
        for key, value in expected.items():
            if key not in found:
                return f"{at} has no {key!r}, only {sorted(found)}"
            if differs := difference(value, found[key], f"{at}.{key}"):
                return differs
        return ""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return _says(at, expected, found)
        pairs = enumerate(zip(expected, found, strict=True))
        return next((d for n, (e, f) in pairs if (d := difference(e, f, f"{at}[{n}]"))), "")
    same = expected == found and isinstance(expected, bool) == isinstance(found, bool)
    return "" if same else _says(at, expected, found)


def _holds(check: str, wanted: Any, found: Any) -> bool:
    match check:
        case "$contains" if isinstance(found, str):
            return wanted in found
        case "$contains":
            return isinstance(found, list) and any(not difference(wanted, one) for one in found)
        case "$length":
            return isinstance(found, str | list | dict) and len(found) == wanted
        case "$matches":
            return isinstance(found, str) and re.search(wanted, found) is not None
        case "$at_least":
            return isinstance(found, int | float) and found >= wanted
        case "$not":
            return bool(difference(wanted, found))
        case "$any":
            return found is not None
    raise ValueError(f"no check: {check}")


def _says(at: str, expected: Any, found: Any) -> str:
    return f"{at} is {_short(found)}, not {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}…"
