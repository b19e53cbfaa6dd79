"""Processes that append to one session at once: by one producer id, and without."""

import palimpsest
from tests.support.append_processes import (
    append_together,
    append_while_killed,
    texts_of,
    wrong_with,
)
from tests.support.harness import api
from verification.attacks.attack import Attack, Outcome, Stage

PROCESSES = 4
#: What each process appends, and how often the API is killed meanwhile.
SHORT = (25, 2)
FULL = (100, 5)


async def run(stage: Stage) -> Outcome:
    """Runs the attack."""
    messages, kills = SHORT if stage.short else FULL
    url = stage.servers.new_database()
    with api(url) as (_, address):
        await _create(address)
        told = await append_together(
            address, "producers", processes=PROCESSES, messages=messages, mode="producer"
        )
        log = await texts_of(address, "producers")
    plain = sum("another process uses this producer id" in one.error for one in told)
    silent = [one.error for one in told if len(one.acked) < messages and not one.error]
    wrong = wrong_with(log, told)
    others = [one.error for one in told if one.error and "another process" not in one.error]
    killed, appended = await append_while_killed(
        url, "appended", processes=PROCESSES, messages=messages, kills=kills
    )
    lost = PROCESSES * messages - len(set(appended))
    wrong += wrong_with(appended, killed)
    found = (
        f"one producer id: {plain} of {PROCESSES} processes told plainly, {len(silent)} told"
        f" nothing, {len(others)} something else; session.append over {kills} kills of the API:"
        f" {len(set(appended))} of {PROCESSES * messages} in the log, {lost} lost,"
        f" {len(appended) - len(set(appended))} twice"
    )
    if wrong:
        found += f"; {len(wrong)} wrong, the first: {wrong[0]}"
    # One of them at the most is left to write.
    is_plain = plain >= PROCESSES - 1 and not silent and not others
    return Outcome(held=is_plain and not wrong and lost == 0, found=found)


async def _create(address: str) -> None:
    async with palimpsest.connect(address) as client:
        await client.create_session("producers")


ATTACK = Attack(
    name="same_producer",
    finding="users 1b",
    summary="four processes append to one session, by one producer id, and by session.append"
    " while the API is killed",
    goal="told that another process uses the id; by session.append nothing lost or twice",
    before="73 of 100 messages refused with 'sequence 2 is stored with other content'; the"
    " client had no append without a producer",
    run=run,
)
