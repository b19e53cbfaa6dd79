"""`make mutants`: removes every guard, and reports what held then, or broke."""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import structlog

from tests.support.harness import Servers
from verification.mutants.appends import APPENDS
from verification.mutants.calls import CALLS
from verification.mutants.keys import KEYS
from verification.mutants.mutant import Chain
from verification.mutants.reads import READS
from verification.mutants.replies import REPLIES
from verification.mutants.run import Verdict, running
from verification.mutants.steps import STEPS
from verification.mutants.stored_once import STORED_ONCE
from verification.mutants.wake_ups import WAKE_UPS
from verification.mutants.waking import WAKING

CHAINS: tuple[Chain, ...] = (
    *(*APPENDS, *STEPS, *KEYS, *WAKE_UPS, *WAKING, *CALLS, *REPLIES, *READS, *STORED_ONCE),
)


def run(only: str | None) -> dict[str, Any]:
    """Judges all mutants, or those of the chain `only`; prints a table of them.

    The result has `wrong`, a list of sentences: mutants that the checker does not notice,
    and guards that do not hold.
    """
    chains = [one for one in CHAINS if only in (None, one.name)]
    if not chains:
        raise SystemExit(f"no chain is called {only}: {', '.join(one.name for one in CHAINS)}")
    # What goes wrong here goes wrong on purpose.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.monotonic()
    with Servers.started() as servers:
        verdicts = asyncio.run(_judge(servers, chains))
    wrong = [f"{one.mutant.name}: {what}" for one in verdicts for what in one.wrong]
    print("\n".join(table(verdicts)))
    return {
        "value": len(verdicts) - len({one.mutant.name for one in verdicts if one.wrong}),
        "goal": f"{len(verdicts)} of {len(verdicts)} mutants, 20 at least",
        "chains": len(chains),
        "seconds": round(time.monotonic() - began, 1),
        "wrong": wrong,
    }


async def _judge(servers: Servers, chains: Sequence[Chain]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    async with running(servers) as runs:
        for chain in chains:
            judged = await runs.judge(chain, alone=True)
            print(f"{chain.name}: {len(judged)} mutants", file=sys.stderr)
            verdicts += judged
    return verdicts


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    lines = [
        "| scenario | what is removed | what counts it | the next guard"
        " | what breaks without any |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in verdicts:
        cells = (
            one.mutant.chain.name,
            one.mutant.layer.what,
            f"`{one.counter}`",
            f"`{one.beneath}`" if one.beneath else "nothing",
            one.violation.partition(":")[0],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
