"""Trajectories of right answers as examples to train a model with.

Of navigations (arXiv 2310.05029, section 7) and of browsings.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import palimpsest
from evaluation.memwalker import MEMORY
from evaluation.report import Result
from palimpsest import TrainingExample

#: Answers that the service exports at once.
MAX_ANSWERS = 1000


class TrajectoryFile:
    """A JSONL file in the chat format: a line for each move, its prompt and its reply."""

    def __init__(self, path: Path, client: palimpsest.Client) -> None:
        self._path = path
        self._client = client
        #: Lines that were written.
        self.examples = 0
        #: Why something was not written, a sentence each.
        self.failures: list[str] = []

    async def write(self, session: str, results: Sequence[Result]) -> bool:
        """Appends the moves of these answers; False, and nothing is written, when it cannot."""
        scores = {one.answer_id: one.score for one in results}
        examples: list[TrainingExample] = []
        try:
            for memory, wanted in _by_memory(results).items():
                asked = self._client.session(session)
                exported = asked.memory(memory) if memory else asked
                for at in range(0, len(wanted), MAX_ANSWERS):
                    some = exported.export_trajectories(wanted[at : at + MAX_ANSWERS])
                    examples += [one async for one in some]
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(_line(one, scores[one.answer]) for one in examples)
        except palimpsest.PalimpsestError as error:
            self.failures.append(str(error))
            return False
        except OSError as error:
            self.failures.append(f"cannot write {self._path}: {error.strerror}")
            return False
        self.examples += len(examples)
        return True


def _by_memory(results: Iterable[Result]) -> dict[str, list[str]]:
    """Answers by the memory that they were navigated in; those of the log have none."""
    found: dict[str, list[str]] = {}
    for one in results:
        found.setdefault("" if one.walk is None else MEMORY, []).append(one.answer_id)
    return found


def _line(one: TrainingExample, score: float) -> str:
    example = {
        "messages": [{"role": turn.role, "content": turn.content} for turn in one.messages],
        "answer": one.answer,
        "ordinal": one.ordinal,
        "template": one.template,
        "score": score,
    }
    return json.dumps(example, ensure_ascii=False) + "\n"
