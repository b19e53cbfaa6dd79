"""How the offline model writes its replies: in the form that is asked of every model."""

from collections.abc import Sequence

from service.domain.prism.amendments import Op
from service.domain.values.json_values import Json, canonical

#: Keys and indexes from the memory's root.
ReplyPath = tuple[str | int, ...]


def changes(
    *,
    updates: Sequence[tuple[ReplyPath, Json]] = (),
    additions: Sequence[tuple[ReplyPath, Json]] = (),
    removals: Sequence[ReplyPath] = (),
) -> str:
    """A revision; with no change in it when there is none."""
    said: list[Json] = [
        {"op": op.value, "path": write(path), "value": canonical(value)}
        for op, ones in ((Op.UPDATE, updates), (Op.ADD, additions))
        for path, value in ones
    ]
    said += [{"op": Op.REMOVE.value, "path": write(path), "value": ""} for path in removals]
    return canonical({"changes": said})


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
