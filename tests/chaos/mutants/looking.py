"""What is wrong with what is there in the end."""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.history import Acked, Final, FinalMemory, ModelCalled, ReadMemory
from tests.chaos.mutants.world import World


def violations(world: World, final: Final) -> list[str]:
    """Broken promises, in sentences."""
    return [*world.wrong, *_of_log(world, final), *_of_memories(final), *_of_calls(world)]


def _of_log(world: World, final: Final) -> Iterator[str]:
    (session,) = final.sessions
    chunks = list(session.chunks)
    if [one.position for one in chunks] != list(range(1, session.head + 1)):
        yield "positions"
    at = {one.position: one for one in chunks}
    once = Counter((one.producer, one.sequence) for one in chunks)
    if any(n > 1 for n in once.values()):
        yield "a chunk twice"
    for event in world.events:
        if isinstance(event, ReadMemory) and event.applied_position < event.wanted_position:
            yield "a stale read"
        if isinstance(event, Acked):
            held = at.get(event.position)
            if held is None or (held.producer, held.sequence) != (event.producer, event.sequence):
                yield f"acked {event.sequence} is not at {event.position}"
            elif not held.is_intact:
                yield "not intact"


def _of_memories(final: Final) -> Iterator[str]:
    (session,) = final.sessions
    for memory in session.memories:
        if memory.status == "active" and memory.applied_position != session.head:
            yield f"memory is at {memory.applied_position}"
        yield from _of_memory(memory)


def _of_memory(memory: FinalMemory) -> Iterator[str]:
    if [one.revision for one in memory.revisions] != list(range(memory.revision + 1)):
        yield "revisions"
    cursor = 0
    for one in memory.revisions:
        if one.from_position != cursor:
            yield f"revision {one.revision} begins at {one.from_position}, not {cursor}"
        cursor = one.to_position
    nodes = Counter((one.level, one.index) for one in memory.nodes)
    vectors = Counter(one.revision for one in memory.vectors)
    if any(n > 1 for n in (*nodes.values(), *vectors.values())):
        yield "a node or a vector twice"


def _of_calls(world: World) -> Iterator[str]:
    if world.may_pay_again:
        return
    asked = Counter(one.prompt for one in world.events if isinstance(one, ModelCalled))
    yield from (f"a call was paid {n} times" for n in asked.values() if n > 1)
