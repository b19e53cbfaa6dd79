"""Verifies a state memory: the vectors in use after each revision, and their origin."""

from collections.abc import Iterator, Mapping

from service.domain.operations.verifying.chain import Difference, RevisionRow
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import (
    STEPS_LEVEL,
    TASK_REVISION,
    State,
    StateVector,
    VectorLevels,
    first_state,
)


class StateCheck:
    """Checks every revision in order, with the vectors that were in use before."""

    def __init__(self, spec: StateSpec) -> None:
        self._spec = spec
        self._levels = VectorLevels()

    def in_use(self) -> frozenset[int]:
        """Returns the vectors, by their revisions, that the next revision can need."""
        return frozenset({TASK_REVISION, *(one for run in self._levels.runs for one in run)})

    def revision(
        self,
        row: RevisionRow,
        levels: VectorLevels | None,
        vectors: Mapping[int, StateVector],
        restored: VectorLevels | None = None,
    ) -> Iterator[Difference]:
        """Checks the next revision; `vectors` has those in use before it, and its own.

        `levels`: the vectors in use after it; None when no row says so. `restored`: those that
        a rollback or a quarantine restores.
        """
        vector = vectors.get(row.revision)
        wanted = self._wanted(row, levels or self._levels, vector, restored)
        if (vector is None) is not (row.kind in ("rollback", "redaction", "quarantine")):
            said = "it has no vector" if vector is None else "it has a vector"
            yield row.differs("state.vector", f"it is a {row.kind}, and {said}")
        elif vector is not None:
            yield from self._vector(row, vector, vectors)
        if levels is None or levels != wanted:
            said = "the vectors in use after it are not those that follow from its kind"
            yield row.differs("state.levels", said)
        stack = wanted.stack()
        if not all(number in vectors for number in stack):
            yield row.differs("state.vector", "a vector in use after it is missing")
        elif row.kind == "redaction":
            # Its digest is that of the last revision that kept its content.
            pass
        elif State.of(row.revision, row.to_position, wanted, vectors).digest != row.digest:
            yield row.differs("state.digest", "its digest is not that of the vectors in use")
        self._levels = wanted

    def _wanted(
        self,
        row: RevisionRow,
        stored: VectorLevels,
        vector: StateVector | None,
        restored: VectorLevels | None,
    ) -> VectorLevels:
        """Returns the levels after a revision, by those before it."""
        if row.kind == "create":
            return VectorLevels()
        if row.kind in ("rollback", "quarantine"):
            return restored or stored
        if vector is None:
            return stored
        if vector.level == STEPS_LEVEL:
            episode_vectors = self._spec.episode_vectors
            return self._levels.with_steps(row.revision, episode_vectors=episode_vectors)
        return self._levels.with_episode(row.revision, vector.level)

    def _vector(
        self, row: RevisionRow, vector: StateVector, vectors: Mapping[int, StateVector]
    ) -> Iterator[Difference]:
        if row.revision == TASK_REVISION:
            if vector != first_state(self._spec).current:
                yield row.differs("state.vector", "its vector is not the task prompt")
            return
        if vector.level == STEPS_LEVEL:
            places = (row.from_position, row.to_position)
            before = vectors.get(self._levels.stack()[-1])
        else:
            run = self._levels.run(vector.level - 1)
            if vector.children != run:
                said = f"it is made from {list(vector.children)}, and in use were {list(run)}"
                yield row.differs("state.children", said)
            ends = [vectors[one] for one in run if one in vectors]
            places = (ends[0].from_position, ends[-1].to_position) if ends else (-1, -1)
            above = self._levels.run(vector.level)
            before = vectors.get(above[-1]) if above else None
        if (vector.from_position, vector.to_position) != places:
            said = f"its vector has positions {vector.from_position + 1} to {vector.to_position}"
            said += f" new in it, not {places[0] + 1} to {places[1]}"
            yield row.differs("state.coverage", said)
        begins = places[0]
        if before is not None and before.revision != TASK_REVISION:
            begins = before.after_position
        if vector.after_position != begins:
            said = f"its vector stands for what comes after position {vector.after_position}"
            yield row.differs("state.coverage", f"{said}, not {begins}")
