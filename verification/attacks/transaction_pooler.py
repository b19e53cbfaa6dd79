"""Many clients behind PgBouncer in transaction mode, whether it was named or not."""

import asyncio

from tests.support.harness import Process, api, worker
from tests.support.pooler import live, pooler, program
from verification.attacks.attack import Attack, Outcome, Stage

CLIENTS = 20
FULL_CLIENTS = 200
#: What the refusal has to name.
_ADVICE = "PALIMPSEST_DATABASE_POOLER=transaction"


async def run(stage: Stage) -> Outcome:
    """Starts without the setting, which has to be refused, and lives with it."""
    if program() is None:
        return Outcome(held=False, found="pgbouncer is not installed: `make setup-ci`")
    url = stage.servers.new_database()
    count = CLIENTS if stage.short else FULL_CLIENTS
    commands = ("serve",) if stage.short else ("serve", "work")
    with pooler(url, drops_options=True) as through:
        unnamed = [_refusal(through, command) for command in commands]
    with pooler(url, drops_options=False) as through:
        unnamed += [_refusal(through, command) for command in commands]
        settings = {
            "PALIMPSEST_DATABASE_POOLER": "transaction",
            "PALIMPSEST_SIGNALS_DATABASE_URL": url,
        }
        with (
            api(through, **settings) as (_, address),
            worker(through, **settings),
        ):
            ended = await asyncio.gather(
                *(live(address, number) for number in range(count)), return_exceptions=True
            )
    refused = sum(_ADVICE in said for said in unnamed)
    errors = [f"{type(one).__name__}: {one}" for one in ended if isinstance(one, BaseException)]
    found = f"{refused} of {len(unnamed)} starts without the setting refused with the reason;"
    found += f" with it {count - len(errors)} of {count} clients right"
    if errors:
        found += f", the first not: {errors[0][:300]}"
    return Outcome(held=refused == len(unnamed) and not errors, found=found)


def _refusal(url: str, command: str) -> str:
    """Returns the error of a process without the pooler's setting; empty when it starts."""
    try:
        Process(command, {"PALIMPSEST_DATABASE_URL": url}, "").close()
    except RuntimeError as error:
        return str(error)
    return ""


ATTACK = Attack(
    name="transaction_pooler",
    finding="citus, PgBouncer",
    summary="20 clients behind PgBouncer in transaction mode, which is named or not",
    goal="without the setting refused at start with the reason; with it all are right",
    before="14 of 20 clients failed, by statements that other clients had prepared",
    run=run,
)
