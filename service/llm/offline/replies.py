"""How the offline model writes its replies: in the form that is asked of every model."""

from collections.abc import Sequence

from service.domain.json_values import Json, canonical

#: Keys and indexes from the memory's root.
ReplyPath = tuple[str | int, ...]


def lines(changes: Sequence[tuple[ReplyPath, Json]], op: str) -> str:
    """One line for each path and value; {} when there is none."""
    return "\n".join(canonical({write(path): {op: value}}) for path, value in changes) or "{}"


def write(path: ReplyPath) -> str:
    """A path as the prompts ask for it."""
    steps = (
        f"[{token}]"
        if isinstance(token, int)
        else ".'{}'".format(token.replace("\\", "\\\\").replace("'", "\\'"))
        for token in path
    )
    return "$" + "".join(steps)


def behind(path: ReplyPath, held: object, value: Json) -> list[tuple[ReplyPath, Json]]:
    """What of an update can be appended to what is there; the rest has to wait."""
    if not isinstance(held, list) or not isinstance(value, list) or value[: len(held)] != held:
        return []
    return [((*path, number), value[number]) for number in range(len(held), len(value))]
