"""What the calls through the proxy may cost: reserved before each call, in a file that survives."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from service.domain.spend.prices import MICRO

Period = Literal["hour", "day", "month"]
_FORMATS: dict[Period, str] = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}


class OverBudget(Exception):
    """A call might cost more than is left; or what it costs, or what is left, is not known."""


@dataclass(frozen=True, kw_only=True)
class ReservedCost:
    """What one call may cost at most."""

    #: The hour, day or month from which it is taken.
    period: str
    #: Millionths of a dollar.
    micro_usd: int


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much calls may cost within each hour, day or month of UTC."""

    path: Path
    usd: float
    period: Period

    def reserve(self, micro_usd: int) -> ReservedCost:
        """Reserves what a call may cost at most. Raises OverBudget.

        A call that a crash ended stays reserved until the period ends: the provider may have
        charged it.
        """
        with self._open() as spent:
            left = self._left(spent)
            if micro_usd > left:
                raise OverBudget(
                    f"this call may cost ${micro_usd / MICRO:.4f}, and ${max(left, 0) / MICRO:.4f}"
                    f" of ${self.usd:g} is left for this {self.period}: ask for fewer tokens of"
                    " reply, or wait"
                )
            spent["micro_usd"] += micro_usd
            return ReservedCost(period=spent["period"], micro_usd=micro_usd)

    def left(self) -> int:
        """Returns what is left, in millionths of a dollar. Raises OverBudget."""
        with self._open() as spent:
            return self._left(spent)

    def replace(self, reserved: ReservedCost, micro_usd: int) -> None:
        """Replaces what was reserved by what the call cost, in the period of its start.

        Raises OverBudget when the file cannot be changed: then it stays reserved.
        """
        with self._open() as spent:
            if spent["period"] == reserved.period:
                spent["micro_usd"] = max(0, spent["micro_usd"] + micro_usd - reserved.micro_usd)

    def _left(self, spent: dict[str, Any]) -> int:
        return round(self.usd * MICRO) - int(spent["micro_usd"])

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """Yields what is spent in this period, and stores it durably; one process at a time."""
        now = datetime.now(UTC).strftime(_FORMATS[self.period])
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                spent = before = self._read()
                if spent.get("period") != now:
                    spent = {"period": now, "micro_usd": 0}
                before = dict(before)
                yield spent
                if spent != before:
                    self._write(spent)
        except OSError as error:
            raise OverBudget(
                f"{self.path} cannot be used ({error.strerror}), and without it what was spent is"
                " unknown: mend that"
            ) from error

    def _read(self) -> dict[str, Any]:
        try:
            stored = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise OverBudget(
                f"{self.path} is damaged: what was spent is unknown; remove it to begin anew"
            ) from error
        return stored if isinstance(stored, dict) else {}

    def _write(self, spent: dict[str, Any]) -> None:
        new = self.path.with_suffix(".new")
        with new.open("w") as file:
            json.dump(spent, file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.path)
