"""What the calls through the proxy may cost: held before each call, in a file that survives."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from service.domain.spend.prices import MICRO, ModelPrices, cost_micro_usd, most_micro_usd
from service.proxy.replies import Reply

Period = Literal["hour", "day", "month"]
_FORMATS: dict[Period, str] = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
#: Bytes of a request are at least so many times its tokens: a token has a byte or more.
BYTES_PER_TOKEN = 1


class OverBudget(Exception):
    """A call might cost more than is left; or what it costs is not known."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much calls may cost within each hour, day or month of UTC."""

    path: Path
    usd: float
    period: Period

    def hold(self, prices: ModelPrices, *, request_bytes: int, output_tokens: int) -> int:
        """Holds what a call costs at most, in millionths of a dollar. Raises OverBudget.

        The bytes of the request are more than its tokens. A call that a crash ended stays held
        until the period ends: the provider may have charged it.
        """
        most = most_micro_usd(
            prices, input_tokens=request_bytes // BYTES_PER_TOKEN, output_tokens=output_tokens
        )
        if most is None:
            raise OverBudget(
                "the price of this model is not known, and there is a budget: set it by"
                " PALIMPSEST_MODEL_PRICES"
            )
        with self._open() as spent:
            left = round(self.usd * MICRO) - spent["micro_usd"]
            if most > left:
                raise OverBudget(
                    f"this call may cost ${most / MICRO:.4f}, and ${max(left, 0) / MICRO:.4f} of"
                    f" ${self.usd:g} is left for this {self.period}: ask for fewer tokens of reply,"
                    " or wait"
                )
            spent["micro_usd"] += most
        return most

    def settle(self, held: int, prices: ModelPrices, reply: Reply) -> None:
        """Replaces what was held by what the provider's counts cost; without them it stays."""
        if not reply.input_tokens:
            return
        cost = cost_micro_usd(
            prices,
            input_tokens=reply.input_tokens,
            cached=reply.cached_tokens,
            written=reply.written_tokens,
            output_tokens=reply.output_tokens,
        )
        self._change((cost or 0) - held)

    def release(self, held: int) -> None:
        """Releases what was held for a call that the provider refused or never got."""
        self._change(-held)

    def _change(self, micro_usd: int) -> None:
        with self._open() as spent:
            spent["micro_usd"] = max(0, spent["micro_usd"] + micro_usd)

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """Yields what is spent in this period, and stores it durably; one process at a time."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime(_FORMATS[self.period])
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            spent = self._read()
            if spent.get("period") != now:
                spent = {"period": now, "micro_usd": 0}
            yield spent
            new = self.path.with_suffix(".new")
            with new.open("w") as file:
                json.dump(spent, file)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self.path)

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
