"""The report of the experiment: settings, figures, and every game."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.reliability.outcomes import GameResult, StrategySummary
from evaluation.report import replace_file

FORMAT = 1


class Report:
    """Results, with what they were got by."""

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, Any],
        versions: Mapping[str, str],
        *,
        created: str,
    ) -> None:
        """Without a path nothing is written."""
        #: Games in the order in which they ended.
        self.results: list[GameResult] = []
        self._path = path
        self._head: dict[str, Any] = {
            "format": FORMAT,
            "experiment": "reliability",
            "created": created,
            "settings": dict(settings),
            "versions": dict(versions),
        }

    def head(self) -> dict[str, Any]:
        """Returns all but the games."""
        return dict(self._head)

    def write(self, summaries: Sequence[StrategySummary], *, updated: str, complete: bool) -> None:
        """Writes the whole file, or leaves the one before it. Raises ReportError."""
        self._head |= {
            "updated": updated,
            "complete": complete,
            "summaries": [asdict(one) for one in summaries],
        }
        if self._path is None:
            return
        held = {**self._head, "games": [_game(one) for one in self.results]}
        replace_file(self._path, f"{json.dumps(held, ensure_ascii=False, indent=1)}\n")


def _game(result: GameResult) -> dict[str, Any]:
    return {**asdict(result), "tokens": result.tokens}
