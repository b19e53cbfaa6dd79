"""Runs: inputs of a target made one after the other, read, and what came of it."""

import random
import signal
import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from service.domain.values.errors import PalimpsestError
from service.rpc.errors import abort_arguments

#: Calls that reading an input may make: a base, and so many for each of its characters.
CALLS = 200_000
CALLS_A_CHARACTER = 200
#: Bytes that reading an input may hold at once, in the same way.
BYTES = 16 * 1024 * 1024
BYTES_A_CHARACTER = 1000
#: The calls of every so many inputs are counted, and the bytes; both take longer than reading.
COUNTED = 20
MEASURED = 500
#: Seconds of processor time that an input may take; asked of runs by hand only.
SECONDS = 0.1
#: … after which it is given up.
MAX_SECONDS = 20
#: How often a slow input is read again: other load on the machine slows it too.
AGAIN = 3
#: Characters of an input that are shown.
SHOWN = 2000


class Broken(AssertionError):
    """An input that breaks a promise; the message names the promise."""


def size_of(made: Any) -> int:
    """Returns the size of an input, where it is a text, bytes or something else with a length."""
    return len(made) if isinstance(made, Sized) else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is fuzzed."""

    name: str
    #: An input, from chance alone.
    make: Callable[[random.Random], Any]
    #: Reads an input and raises Broken where a promise is not kept. Whether it was taken.
    check: Callable[[Any], bool]
    #: What it may raise: errors that say what is wrong with the input.
    refusals: tuple[type[Exception], ...] = ()
    size: Callable[[Any], int] = size_of
    #: Instead of CALLS and SECONDS, where more is done than to read.
    calls: int = CALLS
    seconds: float = SECONDS


@dataclass(slots=True)
class Finding:
    """An input that breaks a promise."""

    number: int
    shown: str
    said: str


@dataclass(slots=True)
class Result:
    """The result of a run."""

    name: str
    inputs: int = 0
    taken: int = 0
    refused: int = 0
    #: Processor time of all inputs; 0 where it was not measured.
    seconds: float = 0.0
    #: The input that took longest, and how long that was.
    slowest_seconds: float = 0.0
    slowest_size: int = 0
    slowest_number: int = 0
    most_calls: int = 0
    most_bytes: int = 0
    #: By where they broke, the first of each.
    findings: dict[str, Finding] = field(default_factory=dict)


def seeded(target: str, seed: int, number: int) -> random.Random:
    """Returns the chance of one input."""
    return random.Random(f"{target}:{seed}:{number}")


def run(target: Target, inputs: int, seed: int, *, first: int = 0) -> Result:
    """Makes and checks that many inputs. Raises what breaks, with the input in a note."""
    result = Result(target.name)
    for number in range(first, first + inputs):
        made = target.make(seeded(target.name, seed, number))
        try:
            _count(target, made, number, result)
        except Exception as error:
            error.add_note(f"input {number} of seed {seed}: {repr(made)[:SHOWN]}")
            raise
    return result


def survey(target: Target, inputs: int, seed: int, *, first: int = 0) -> Result:
    """Runs as `run` does, with the processor's time; continues after what breaks, and keeps it."""
    result = Result(target.name)
    for number in range(first, first + inputs):
        made = target.make(seeded(target.name, seed, number))
        begin = time.process_time()
        try:
            with _bounded():
                _count(target, made, number, result)
        except Exception as error:
            finding = Finding(number, repr(made)[:SHOWN], f"{type(error).__name__}: {error}")
            result.findings.setdefault(_place(error), finding)
            continue
        spent = time.process_time() - begin
        result.seconds += spent
        if spent > max(result.slowest_seconds, SECONDS / 10):
            _slow(target, made, number, result)
    return result


def _slow(target: Target, made: Any, number: int, result: Result) -> None:
    """Times an input alone, and again while it is too slow."""
    best = MAX_SECONDS * 1.0
    for _ in range(AGAIN):
        begin = time.process_time()
        taken(target, made)
        best = min(best, time.process_time() - begin)
        if best <= target.seconds:
            break
    if best > result.slowest_seconds:
        result.slowest_seconds = best
        result.slowest_size, result.slowest_number = target.size(made), number
    if best > target.seconds:
        said = f"{target.size(made)} characters take {best:.3f} s"
        result.findings.setdefault("slow", Finding(number, repr(made)[:SHOWN], said))


def taken(target: Target, made: Any) -> bool:
    """Returns whether an input is taken; a refusal is none."""
    try:
        return target.check(made)
    except target.refusals as error:
        if not str(error).strip():
            raise Broken("a refusal says why") from error
        if isinstance(error, PalimpsestError):
            # It may quote the input, which must not break the reply that quotes it.
            abort_arguments(error)
        return False


def _count(target: Target, made: Any, number: int, result: Result) -> None:
    was_taken = taken(target, made)
    result.inputs += 1
    result.taken += was_taken
    result.refused += not was_taken
    size = target.size(made)
    if number % COUNTED == 0 or size > 50_000:
        calls = count_calls(lambda: taken(target, made))
        result.most_calls = max(result.most_calls, calls)
        if calls > target.calls + CALLS_A_CHARACTER * size:
            raise Broken(f"reading {size} characters takes {calls} calls")
    if number % MEASURED == 0:
        held = peak_bytes(lambda: taken(target, made))
        result.most_bytes = max(result.most_bytes, held)
        if held > BYTES + BYTES_A_CHARACTER * size:
            raise Broken(f"reading {size} characters holds {held} bytes")


def count_calls(work: Callable[[], object]) -> int:
    """Returns how many calls `work` makes, of Python's functions and of C's."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def peak_bytes(work: Callable[[], object]) -> int:
    """Returns the most bytes that `work` holds at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _place(error: BaseException) -> str:
    """Returns the innermost line of the service where an input broke it, and the promise."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/service/" in one.filename or "/storage/" in one.filename]
    last = (ours or list(frames))[-1]
    said = str(error)[:40] if isinstance(error, Broken) else ""
    return f"{type(error).__name__} {last.filename.rpartition('/')[2]}:{last.lineno} {said}"


@contextmanager
def _bounded() -> Iterator[None]:
    """Ends what takes far too long, patterns included: they look for signals."""

    def stop(_number: int, _frame: object) -> None:
        raise Broken(f"it takes more than {MAX_SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
