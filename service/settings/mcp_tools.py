"""The tools for models that may be served, by name."""

#: What is served by default: tools that work within one session, for a model in conversation.
DEFAULT_TOOLS = ("remember", "recall", "get_memory", "why", "forget")
#: Tools that an operator, or the user of `palimpsest mcp`, has to allow.
ADMIN_TOOLS = ("list_memories", "edit_memory", "rollback_memory")
#: All of them, in the order in which clients see them.
TOOLS = (*DEFAULT_TOOLS, *ADMIN_TOOLS)
#: A model waits for its tool, and the user for the model: what is not there in this time is said.
CALL_SECONDS = 8.0


def checked(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names. Raises ValueError for one that no tool has."""
    for name in names:
        if name not in TOOLS:
            raise ValueError(f"there is no tool {name[:40]!r}: the tools are {', '.join(TOOLS)}")
    return names
