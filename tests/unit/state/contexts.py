"""Working contexts as tests write them down."""

from collections.abc import Sequence

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import State, StateVector, VectorLevels, VectorSource
from service.domain.state.working_context import WorkingContext
from tests.unit.support.logged import logged


def step(position: int, text: str) -> SizedStep:
    """Returns a step whose text is this and nothing else."""
    return SizedStep.of(logged(position, text))


def vector(
    revision: int,
    text: str,
    *,
    after: int = 0,
    begin: int = 0,
    end: int = 1,
    level: int = 1,
    children: tuple[int, ...] = (),
) -> StateVector:
    """Returns a vector of the positions after `begin` to `end`; revision 0 is the task prompt."""
    return StateVector(
        revision=revision,
        level=level,
        text=text,
        tokens=estimate_tokens(text),
        made=VectorSource.MODEL if revision else VectorSource.TASK,
        after_position=after,
        from_position=begin,
        to_position=end if revision else 0,
        children=children,
    )


def chain(*texts: str, size: int = 10) -> list[StateVector]:
    """Vectors of steps, each made from the one before: the oldest first."""
    return [
        vector(number, text, begin=size * (number - 1), end=size * number)
        for number, text in enumerate(texts, 1)
    ]


def context(
    stack: Sequence[StateVector], recent: Sequence[str] = (), *, applied: int | None = None
) -> WorkingContext:
    """Returns the vectors in use, and the steps since."""
    stack = tuple(stack) or (vector(0, ""),)
    applied = stack[-1].to_position if applied is None else applied
    levels = VectorLevels(
        tuple((one.revision,) for one in reversed(stack) if one.revision) or ((),)
    )
    return WorkingContext(
        state=State(
            revision=max(one.revision for one in stack),
            applied_position=applied,
            levels=levels,
            stack=stack,
        ),
        recent=tuple(step(applied + n, text) for n, text in enumerate(recent, 1)),
    )
