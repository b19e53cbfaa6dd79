"""Checks the final state of a world."""

from collections import Counter
from collections.abc import Iterator

from verification.chaos.checker import check
from verification.chaos.history import Final, ModelCalled
from verification.mutants.world import World


def violations(world: World, final: Final) -> tuple[str, ...]:
    """Broken promises: those that the checker knows, by their names, and a scenario's own."""
    report = check(world.events, final, drained=world.is_drained)
    found = [f"{one.promise}: {one.what}" for one in report.violations]
    return (*found, *world.wrong, *_paid_again(world))


def _paid_again(world: World) -> Iterator[str]:
    """Checks that no call was paid for twice; here no call is lost on the way."""
    if world.may_pay_again:
        return
    paid = Counter(
        one.prompt for one in world.events if isinstance(one, ModelCalled) and one.is_paid
    )
    yield from (f"a call was paid for {times} times" for times in paid.values() if times > 1)
