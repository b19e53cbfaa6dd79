"""Which settings the kinds of memories have."""

from collections.abc import Iterable, Mapping

from palimpsest import values
from service.cli.output import CommandError

Kinds = tuple[values.MemoryKind, ...]

#: Settings that not every kind of memory has, and who has them.
KINDS_WITH: Mapping[str, Kinds] = {
    **dict.fromkeys(
        (
            "schema",
            "json_schema",
            "question",
            "final_task",
            "encoding",
            "operations",
            "coercion",
            "steps",
            "chunk_tokens",
            "fold_tokens",
            "memory_tokens",
            "linger",
        ),
        ("prism",),
    ),
    **dict.fromkeys(
        (
            "segment_tokens",
            "max_children",
            "summary_tokens",
            "reasoning",
            "working_memory",
            "working_memory_tokens",
            "navigation_model",
        ),
        ("tree",),
    ),
    "task": ("prism", "state"),
    **dict.fromkeys(
        (
            "task_file",
            "period",
            "period_kind",
            "period_tokens",
            "idle",
            "state_tokens",
            "pin",
            "episode_vectors",
        ),
        ("state",),
    ),
}


def refuse_of_other_kind(
    kind: values.MemoryKind, given: Iterable[str], kinds_with: Mapping[str, Kinds] = KINDS_WITH
) -> None:
    """Raises CommandError for the first option that a memory of this kind does not have."""
    for name in given:
        if kind not in kinds_with.get(name, (kind,)):
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option}: a {kind} memory has no such setting")
