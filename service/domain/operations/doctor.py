"""What `palimpsest doctor` finds, and when a number is one to worry about.

Numbers in, sentences out: other modules read them from a database or a socket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.domain.calls.conditions import Condition
from service.domain.operations.revisions import is_before_version_1
from service.domain.prism.losses import Loss, LossKind

#: The oldest PostgreSQL that is tested, as its server_version_num.
OLDEST_POSTGRES = 150_000
#: Two clocks that are further apart than this confuse readers of logs, in seconds.
CLOCK_SECONDS = 2.0
#: Work that no worker has touched for so long is stuck: longer than a call with all its tries.
STUCK_SECONDS = 900.0
#: Answers and drafts that wait for so long are reported, in seconds.
PENDING_SECONDS = 600.0
#: The intent of a call whose lease ran out so long ago has been forgotten, in seconds.
INTENT_SECONDS = 3600.0
#: Retention that has not completed for so many passes, and seconds, is reported.
RETENTION_PASSES = 3
RETENTION_SECONDS = 6 * 3600.0
#: A wake-up that waits for so long says that there are too few workers, in seconds.
WAKE_UP_SECONDS = 60.0
#: So many chunks whose words are not indexed are reported.
INDEX_CHUNKS = 10_000
#: An embedded PostgreSQL keeps a gigabyte of its write-ahead log; with less free it is reported.
LOW_DISK_BYTES = 2 * 1024**3
#: A memory so far behind is reported, as a share of the backlog at which appends are refused.
BACKLOG_SHARE = 0.1


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    #: Something to know, or to do some day.
    WARN = "warn"
    #: Something does not work.
    BAD = "bad"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of what the doctor reports."""

    #: What was checked, in a word.
    name: str
    level: Severity
    #: What is the case, in a sentence without a full stop.
    said: str
    #: What to do; empty where there is nothing to do.
    advice: str = ""


def ok(name: str, said: str) -> Finding:
    """Returns a finding without a problem."""
    return Finding(name=name, level=Severity.OK, said=said)


def warn(name: str, said: str, advice: str) -> Finding:
    """Returns a finding that operators should know."""
    return Finding(name=name, level=Severity.WARN, said=said, advice=advice)


def bad(name: str, said: str, advice: str) -> Finding:
    """Returns a finding of something that does not work."""
    return Finding(name=name, level=Severity.BAD, said=said, advice=advice)


def judge_server(version: str, number: int) -> Finding:
    """Judges the release of PostgreSQL."""
    if number < OLDEST_POSTGRES:
        return bad("database", f"PostgreSQL {version}", "use PostgreSQL 15 or later")
    return ok("database", f"PostgreSQL {version}")


def judge_disk(place: str, free_bytes: int, *, is_full: bool) -> Finding:
    """Judges the room on a disk that an embedded PostgreSQL writes to."""
    said = f"{free_bytes / 1024**2:,.0f} MB free at {place}"
    if is_full:
        return bad("disk", f"full: {said}", "make room; nothing acked is lost, and all goes on")
    if free_bytes < LOW_DISK_BYTES:
        return warn("disk", said, "make room before it is full: appends are refused then")
    return ok("disk", said)


def judge_sizes(total: int, tables: Sequence[tuple[str, int]]) -> Finding:
    """Reports the bytes of the database and of its largest tables."""
    named = ", ".join(f"{name} {_megabytes(size)}" for name, size in tables)
    return ok("sizes", f"{_megabytes(total)} in the database; with indexes: {named}")


def _megabytes(size: int) -> str:
    return f"{size / 1024**2:,.1f} MB"


def judge_writes(*, is_standby: bool, is_read_only: bool, waiting: int) -> Finding:
    """Judges whether a server accepts writes; `waiting` commits await a synchronous standby."""
    if is_standby:
        advice = "promote it, or name the primary; several hosts can be named"
        return bad("writes", "the server is a standby and takes no writes", advice)
    if is_read_only:
        advice = "name the server that has replaced it, or reset default_transaction_read_only"
        return bad("writes", "the server takes no writes", advice)
    if waiting:
        said = f"{waiting} commit{'s' * (waiting > 1)} waiting for a synchronous standby"
        advice = "if that lasts: check whether one of synchronous_standby_names is connected"
        return warn("writes", said, advice)
    return ok("writes", "the server takes writes")


def judge_durability(settings: dict[str, str]) -> Finding:
    """Judges whether a commit is on disk when it is acked."""
    lost = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if lost:
        said = f"the server has {' and '.join(lost)} off: a power cut loses what was acked"
        return bad("durability", said, "turn it on and restart PostgreSQL")
    if settings.get("synchronous_commit") == "off":
        return warn(
            "durability",
            "synchronous_commit is off for others; our connections turn it on for themselves",
            "turn it on for the database, so that nothing that goes past them loses a commit",
        )
    return ok("durability", "fsync, full_page_writes and synchronous_commit are on")


#: Settings of a server, by which it logs values of statements that go well. Either is a
#: number, negative for never, or a word.
_LOGGED_ALWAYS = ("log_min_duration_statement", "log_min_duration_sample")


def judge_logged(settings: dict[str, str]) -> Finding:
    """Judges whether the server logs texts of users. Our own statements have no values."""
    logs = settings.get("log_statement") in ("mod", "all") or any(
        not settings.get(name, "-1").startswith("-") for name in _LOGGED_ALWAYS
    )
    changes = []
    if logs and settings.get("log_parameter_max_length", "0") != "0":
        changes.append("log_parameter_max_length = 0")
    if settings.get("log_error_verbosity", "terse") != "terse":
        # Rows that a key or a check refuses.
        changes.append("log_error_verbosity = terse")
        if settings.get("log_parameter_max_length_on_error", "0") != "0":
            changes.append("log_parameter_max_length_on_error = 0")
    if not changes:
        return ok("logs", "the server's log gets no values of statements")
    said = "the server's log may get texts of users: values of statements, or rows that it refuses"
    return warn("logs", said, f"set {', '.join(changes)}")


def judge_clock(off_seconds: float, round_trip_seconds: float) -> Finding:
    """Compares this machine's clock with the database's: `off_seconds` is ours less theirs."""
    doubt = round_trip_seconds / 2
    if abs(off_seconds) - doubt > CLOCK_SECONDS:
        way = "ahead of" if off_seconds > 0 else "behind"
        return warn(
            "clock",
            f"this machine is {abs(off_seconds):.1f} s {way} the database",
            "set the clocks by NTP: times in logs do not match (leases go by the database's)",
        )
    return ok("clock", f"this machine and the database agree within {CLOCK_SECONDS:.0f} s")


def judge_migration(found: str | None, newest: str, known: frozenset[str]) -> Finding:
    """Compares the database's migration with this release."""
    if found is None:
        return bad("migrations", "the database is not migrated", "run `palimpsest migrate`")
    if found == newest:
        return ok("migrations", f"at {found}, the newest of this release")
    if is_before_version_1(found, known):
        said = f"at {found}, of a release before version 1, which is not migrated"
        return bad("migrations", said, "begin with an empty database")
    if found in known:
        said = f"at {found}, behind this release's {newest}: its processes do not start"
        return bad("migrations", said, "run `palimpsest migrate`")
    return warn(
        "migrations",
        f"at {found}, ahead of this release's {newest}",
        "install the newer release on this machine, unless it is being rolled out now",
    )


def judge_role(role: str, *, unfit: str, open_tables: tuple[str, ...]) -> Finding:
    """Judges whether row-level security binds us; `unfit` says why it does not."""
    if unfit:
        return bad("rights", unfit, "connect with a login that takes on palimpsest_app")
    if open_tables:
        said = f"row-level security is not forced on {', '.join(open_tables)}"
        return bad("rights", said, "run `palimpsest migrate`, or find who turned it off")
    return ok("rights", f"role {role}; row-level security is forced on every table of tenants")


def judge_queue(
    *, queued: int, running: int, oldest_seconds: float, workers: int, silent: int
) -> list[Finding]:
    """Judges the waiting work, and the workers that send heartbeats."""
    said = f"{queued} items wait, the oldest for {oldest_seconds:.0f} s; {running} in hand"
    if queued and oldest_seconds > WAKE_UP_SECONDS:
        advice = "start more workers, or raise PALIMPSEST_WORKER_CONCURRENCY"
        findings = [warn("queue", said, advice)]
    else:
        findings = [ok("queue", said)]
    if not workers:
        advice = "start one with `palimpsest work`"
        findings.append(
            bad("workers", "none lives, and there is work", advice)
            if queued or running
            else warn("workers", "none lives", advice)
        )
    elif silent:
        said = f"{workers} live; {silent} fell silent, and their work was not released"
        findings.append(warn("workers", said, "check whether the workers' sweeps fail"))
    else:
        findings.append(ok("workers", f"{workers} live"))
    return findings


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCounts:
    """Counts of a tenant's memories, with some names."""

    total: int
    #: They gave up and wait for an operator.
    stalled: tuple[str, ...]
    #: Why, each with how many gave up for it; the most frequent first.
    causes: tuple[tuple[str, int], ...]
    #: A budget holds them.
    held: tuple[str, ...]
    #: Their calls fail, and those of others do not, as far as is known; and by what the first.
    failing: tuple[str, ...]
    failing_by: str
    #: They have work, are due, and no worker has touched them for STUCK_SECONDS.
    stuck: tuple[str, ...]
    #: Chunks that the slowest active one is behind its session's head.
    behind: int
    slowest: str


def judge_memories(found: MemoryCounts, backlog_chunks: int) -> list[Finding]:
    """Judges memories that make no progress."""
    findings: list[Finding] = []
    if found.stuck:
        said = f"{_some(found.stuck)} have work that no worker has touched for"
        advice = "start a worker; if one runs, its log says why"
        findings.append(bad("memories", f"{said} {STUCK_SECONDS / 60:.0f} minutes", advice))
    if found.stalled:
        advice = (
            "`palimpsest memory list --status stalled` lists them; when the cause is gone,"
            " `palimpsest memory retry --all` lets them go on"
        )
        why = "; ".join(f"{number} by: {cause}" for cause, number in found.causes)
        findings.append(bad("memories", f"{_some(found.stalled)} gave up: {why}", advice))
    if found.held:
        advice = "`palimpsest budget list` shows what they may spend"
        findings.append(warn("memories", f"{_some(found.held)} are held by a budget", advice))
    if found.failing:
        advice = (
            "they are tried again until it passes; if it does not, and others go on, it is by"
            " their texts: `palimpsest memory update --model` gives a memory another"
        )
        said = f"the model calls of {_some(found.failing)} fail: {found.failing_by}"
        findings.append(warn("memories", said, advice))
    if found.behind > backlog_chunks * BACKLOG_SHARE:
        said = f"{found.slowest} is {found.behind} chunks behind; at {backlog_chunks} appends"
        findings.append(warn("memories", f"{said} are refused", "start more workers"))
    said = f"{found.total} memories; none is more than {found.behind} chunks behind"
    return findings or [ok("memories", said)]


def judge_losses(found: Sequence[tuple[str, Loss]]) -> list[Finding]:
    """Judges memories, by name, that go on and lose what their models propose."""
    log = "`palimpsest memory log --rejected` lists what is missing"
    advices = {
        LossKind.NO_ROOM: ("are full and lose proposals", f"{log}; remove entries, or rebuild"),
        LossKind.INVALID: ("reject most proposals", f"{log}, and why; change schema or task"),
    }
    findings = []
    for kind, (what, advice) in advices.items():
        names = tuple(name for name, one in found if one.kind is kind)
        if names:
            findings.append(warn("losses", f"{_some(names)} {what}", advice))
    return findings or [ok("losses", "no memory loses what its model proposes")]


def _some(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:3])
    return f"{listed} and {len(names) - 3} more" if len(names) > 3 else listed


def judge_conditions(conditions: Sequence[Condition], waiting: Mapping[str, int]) -> list[Finding]:
    """Judges models that give no replies, each with how many memories wait for it."""
    findings = []
    for one in conditions:
        number = waiting.get(one.model, 0)
        wait = "1 memory waits" if number == 1 else f"{number} memories wait"
        said = f"{one.cause}; {wait} since {one.since:%Y-%m-%d %H:%M:%S} UTC"
        findings.append(bad("models", said, "they go on by themselves when it passes"))
    return findings or [ok("models", "none is known to fail")]


def judge_pending(name: str, pending: int, late: int, oldest_seconds: float) -> Finding:
    """Judges answers or drafts that wait for a worker."""
    if late:
        said = f"{late} of {pending} wait since more than {PENDING_SECONDS / 60:.0f} minutes"
        said += f", the oldest since {oldest_seconds / 60:.0f}"
        return warn(name, said, "start a worker; if one runs, its log says why")
    return ok(name, f"{pending} pending")


def judge_intents(open_calls: int, forgotten: int) -> Finding:
    """Judges calls that were begun."""
    if forgotten:
        said = f"{forgotten} calls were begun and never ended, more than an hour ago"
        advice = "they count against budgets until their work is done again; retry what gave up"
        return warn("intents", said, advice)
    return ok("intents", f"{open_calls} calls about to be made or under way")


def judge_retention(seconds: float | None, pass_seconds: float) -> Finding:
    """Judges how long ago policies of retention were applied to the whole tenant."""
    if seconds is None:
        return ok("retention", "no policy: nothing expires")
    hours = f"{seconds / 3600:.1f} hours"
    if seconds > max(RETENTION_PASSES * pass_seconds, RETENTION_SECONDS):
        said = f"policies have not been applied to all sessions for {hours}"
        advice = "run more workers, or look for `palimpsest.retention` in the logs of workers"
        return warn("retention", said, advice)
    return ok("retention", f"policies were applied to all sessions {hours} ago")


def judge_spend(*, adds_up: bool) -> Finding:
    """Judges the sums that budgets are checked against."""
    if adds_up:
        return ok("spend", "the running sums are what calls cost")
    said = "the running sums are not what calls cost, and budgets are checked against them"
    return bad("spend", said, "run `palimpsest verify --all --repair`")


def judge_index(sessions: int, chunks: int, words_failure: str, failure: str) -> Finding:
    """Compares the search index with the log."""
    said = f"{sessions} sessions have {chunks} chunks without words" if chunks else "up to date"
    if words_failure:
        advice = "look for `words not written` in the logs of workers"
        return warn("index", f"{said}; words fail: {words_failure}", advice)
    if failure:
        advice = "look after PALIMPSEST_EMBEDDING_MODEL and its endpoint"
        return warn("index", f"{said}; vectors fail: {failure}", advice)
    if chunks > INDEX_CHUNKS:
        return warn("index", said, "start more workers; searches read what is not indexed")
    return ok("index", said)
