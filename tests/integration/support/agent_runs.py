"""Runs of agents in the form in which some are recorded."""

from typing import Any

from service.domain.log.chunks import Chunk, ChunkKind
from tests import ROOT

#: Recorded agent runs beside the repository, where they are there.
RUNS = ROOT.parent / "shared/data/agent_hotpotqa_react/dev.jsonl"


def chunks_of(run: dict[str, Any]) -> list[Chunk]:
    """Returns a run's steps as an agent would record them; one of nothing is none."""
    chunks = [
        Chunk(
            kind=ChunkKind.STEP,
            observation=step["observation"] or "",
            thought=step["thought"] or "",
            action=step["action"] or "",
        )
        for step in run["steps"]
    ]
    return [chunk for chunk in chunks if not chunk.is_empty()]
