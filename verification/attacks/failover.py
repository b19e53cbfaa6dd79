"""The primary of the database is lost, and its replica takes over, while clients append."""

from palimpsest import OutOfRange
from tests.support.acked import Traffic, differing, in_a_thread, kept, odd_words, service
from tests.support.harness import eventually
from tests.support.replicated import FailedOver, Pair
from verification.attacks.attack import Attack, Outcome, Stage

#: Acks of each producer before a fault, and after it: in chunks.
ACKED = 12
PRODUCERS = {True: 3, False: 16}
#: How often the primary is lost, each time in both ways.
ROUNDS = {True: 1, False: 5}


def synchronously(both: Pair, traffic: Traffic, *, rounds: int) -> list[float]:
    """Loses the primary under load, `rounds` times with a replica that has all, and as often
    with one that was away, so that commits waited for it.

    Returns the seconds from the loss of each primary until each producer had an ack again.
    """
    seconds = []
    for _ in range(rounds):
        both.be_synchronous()
        traffic.await_more(ACKED)
        seconds.append(seconds_to_acks(traffic, both.fail_over()))
        both.copy()
        both.be_synchronous()
        traffic.await_more(ACKED)
        both.replica.kill()
        eventually("commits wait for the replica", lambda: both.commits_waiting() > 0)
        seconds.append(seconds_to_acks(traffic, both.fail_over(behind=True)))
        both.copy()
    traffic.await_more(ACKED)
    return seconds


def seconds_to_acks(traffic: Traffic, over: FailedOver) -> float:
    """Returns the seconds from the loss of the primary to an ack for each producer."""
    return traffic.all_acked_at(over.promoted) - over.killed


def asynchronously(both: Pair, address: str) -> tuple[int, str]:
    """Loses a primary whose replica was away and was not waited for.

    Returns how many acked chunks are gone, and the reason that their producer gets.
    """
    # A producer that keeps what it has sent, and continues: it must get an error.
    traffic = Traffic(address, 1, prefix="late")
    traffic.start()
    traffic.await_more(ACKED)
    both.replica.kill()
    traffic.await_more(ACKED)
    acked = sum(traffic.acked.values())
    both.fail_over(behind=True)
    there = int(both.primary.ask("SELECT head FROM session WHERE name = 'late0'"))
    told = ""
    try:
        traffic.end()
    except* OutOfRange as group:
        told = ", ".join(str(getattr(one, "reason", "")) for one in group.exceptions)
    return acked - there, told


def lose_primaries(*, short: bool) -> Outcome:
    """Runs the attack, which waits for servers and threads."""
    with Pair.in_a_folder() as both, service(both.url) as (address, *ours):
        traffic = Traffic(address, PRODUCERS[short])
        traffic.start()
        seconds = synchronously(both, traffic, rounds=ROUNDS[short])
        traffic.end()
        wrong = in_a_thread(kept(address, traffic))
        wrong += in_a_thread(differing(both.url_at(both.primary.port), traffic.names))
        lost, told = asynchronously(both, address)
        wrong += odd_words(*ours)
    times = ", ".join(f"{one:.1f}" for one in sorted(seconds))
    return Outcome(
        held=not wrong and lost > 0 and told == "SEQUENCE_GAP",
        found=(
            f"{sum(traffic.acked.values())} chunks acked, {len(seconds)} primaries lost, acks to"
            f" all again after {times} s; wrong: {'; '.join(wrong) or 'nothing'}. Asynchronously"
            f" {lost} acked chunks lost, their producer told {told or 'nothing'}"
        ),
    )


async def _run(stage: Stage) -> Outcome:
    # In this very thread: the servers end with the one that starts them.
    return lose_primaries(short=stage.short)


ATTACK = Attack(
    name="failover",
    finding="issue 18, item 13",
    summary="kills the primary of a replicated database under load and promotes its replica",
    goal=(
        "with synchronous replication everything acked is there in order, once, and all goes on"
        " by itself; without it what is lost is told, never misread"
    ),
    before=(
        "not tried; several hosts refused by the settings, and a connection to a server that"
        " takes no writes any more kept for ever"
    ),
    run=_run,
)
