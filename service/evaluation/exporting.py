"""Trajectories of right answers as examples to train a model with (section 7 of the paper)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpc import aio

import palimpsest
from palimpsest.errors import from_rpc
from palimpsest.v1 import trajectories_pb2, trajectories_pb2_grpc
from service.evaluation.memwalker import MEMORY
from service.evaluation.report import Result


class TrajectoryFile:
    """A JSONL file in the chat format: a line for each move, its prompt and its reply."""

    def __init__(self, path: Path, client: palimpsest.Client, *, timeout_seconds: float) -> None:
        self._path = path
        self._address = client.address
        self._timeout = timeout_seconds
        self._trajectories = trajectories_pb2_grpc.TrajectoryServiceStub(client.channel)
        #: Lines that were written.
        self.examples = 0
        #: Why something was not written, a sentence each.
        self.failures: list[str] = []

    async def write(self, session: str, results: Sequence[Result]) -> bool:
        """Appends the moves of these answers; False, and nothing is written, when it cannot."""
        scores = {one.answer_id: one.score for one in results}
        request = trajectories_pb2.ExportTrajectoriesRequest(
            session=session, memory=MEMORY, answer_ids=list(scores)
        )
        lines: list[str] = []
        try:
            async for one in self._trajectories.ExportTrajectories(request, timeout=self._timeout):
                lines.append(_line(one, scores.get(one.answer_id, 0.0)))
        except aio.AioRpcError as error:
            self.failures.append(str(from_rpc(error, self._address)))
            return False
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            self.failures.append(f"cannot write {self._path}: {error.strerror}")
            return False
        self.examples += len(lines)
        return True


def _line(one: Any, score: float) -> str:
    example = {
        "messages": [{"role": turn.role, "content": turn.content} for turn in one.turns],
        "answer_id": one.answer_id,
        "ordinal": one.ordinal,
        "template": one.template,
        "score": score,
    }
    return json.dumps(example, ensure_ascii=False) + "\n"
