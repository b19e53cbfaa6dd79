"""The report of an evaluation: a JSON file that is written during the run.

An interrupted run is continued from it: what has an outcome is not asked again, what
failed is.
"""

import json
import os
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluation.datasets import Document, Question
from evaluation.measures import Scores, gold_cited, recall
from evaluation.strategies import Outcome, Prepared, Spent, StrategyName, Walk

#: 1 knew neither browsing nor choices.
FORMAT = 2
#: A report is written at most so often during the run, and always at its end.
WRITE_SECONDS = 1.0
#: Settings that a continued run may change: they affect no result.
_FREE = frozenset({"strategies", "concurrency", "timeout_seconds"})


class ReportError(Exception):
    """A report cannot be used; the message is one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A question, asked with a strategy."""

    strategy: str
    document: str
    #: Number of the question within its document.
    number: int
    question: str
    golds: tuple[str, ...]
    options: tuple[str, ...] = ()
    session: str = ""
    answer_id: str = ""
    model: str = ""
    #: Empty when there is none.
    answer: str = ""
    #: Why there is none, in a word.
    no_answer: str = ""
    #: Whether it is an option that was chosen although nothing that was read says so.
    guessed: bool = False
    #: Why it failed, in a sentence; empty when it did not.
    failure: str = ""
    #: Each from 0 to 1; 0 for a question that failed.
    score: float = 0.0
    exact: float = 0.0
    f1: float = 0.0
    rouge_l: float = 0.0
    #: The share of the evidence in the text that was shown, and in what is cited; None
    #: where the dataset names no evidence, or the strategy has no citations.
    evidence_shown: float | None = None
    evidence_cited: float | None = None
    #: Whether a cited span has a right answer word for word: 1 or 0; None where that cannot be.
    gold_cited: float | None = None
    spent: Spent = field(default_factory=Spent)
    #: Wall time, with that of others that were asked at the same time.
    seconds: float = 0.0
    walk: Walk | None = None
    #: As in Outcome.
    pieces: int | None = None
    chosen: str = ""
    #: Whether its trajectory was exported.
    exported: bool = False

    @property
    def has_trajectory(self) -> bool:
        """Whether it was navigated or browsed to, by the strategy."""
        return not self.chosen and (self.walk is not None or self.pieces is not None)

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the only one of."""
        return (self.strategy, self.document, self.number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """What a strategy did with a document before its questions."""

    strategy: str
    document: str
    #: Names the service's data: what is built in a folder that is thrown away is built again.
    place: str
    spent: Spent
    seconds: float


def result_of(
    strategy: StrategyName,
    document: Document,
    question: Question,
    prepared: Prepared,
    outcome: Outcome,
    scores: Scores,
    seconds: float,
) -> Result:
    """Returns the result of a question that was answered, or has no answer."""
    return Result(
        strategy=strategy,
        document=document.id,
        number=question.number,
        question=question.text,
        golds=question.golds,
        options=question.options,
        session=prepared.session,
        answer_id=outcome.answer_id,
        model=outcome.model,
        answer=outcome.text,
        no_answer=outcome.no_answer,
        guessed=outcome.guessed,
        evidence_shown=recall(question.evidence, outcome.seen),
        evidence_cited=recall(question.evidence, outcome.cited),
        gold_cited=gold_cited(document, question, outcome.spans),
        spent=outcome.spent,
        seconds=seconds,
        walk=outcome.walk,
        pieces=outcome.pieces,
        chosen=outcome.chosen,
        **asdict(scores),
    )


def failed(
    strategy: StrategyName, document: Document, question: Question, cause: str, seconds: float
) -> Result:
    """Returns the result of a question that could not be answered."""
    return Result(
        strategy=strategy,
        document=document.id,
        number=question.number,
        question=question.text,
        golds=question.golds,
        options=question.options,
        failure=cause,
        seconds=seconds,
    )


class Report:
    """Results so far, with what they were got by."""

    def __init__(self, path: Path | None, head: Mapping[str, Any]) -> None:
        self._path = path
        self._head = dict(head)
        self._results: dict[tuple[str, str, int], Result] = {}
        self._builds: dict[tuple[str, str, str], Build] = {}
        self._written = 0.0

    @classmethod
    def begin(cls, path: Path | None, head: Mapping[str, Any]) -> "Report":
        """Returns a new report; `head` has the settings and `run_id`. Raises ReportError."""
        if path is not None and path.exists():
            raise ReportError(f"{path} is there already; --resume goes on with it")
        report = cls(path, head)
        report.write()
        return report

    @classmethod
    def resume(cls, path: Path, head: Mapping[str, Any]) -> "Report":
        """Reads the report of an interrupted run, if its settings are these. Raises ReportError."""
        found = _load(path)
        for name, value in head["settings"].items():
            held = found["settings"].get(name)
            if name not in _FREE and held != value:
                raise ReportError(
                    f"{path} was made with {name} {held!r}, not {value!r}; begin another report"
                )
        for name, version in head["versions"].items():
            if found["versions"].get(name) != version:
                raise ReportError(f"{path} was made with another version of {name}")
        report = cls(path, {**found, "settings": dict(head["settings"]), "complete": False})
        try:
            for one in found["questions"]:
                report.add(_result(one))
            for one in found["builds"]:
                report.built(_build(one))
        except (KeyError, TypeError) as error:
            raise ReportError(f"{path} is no report of this release") from error
        return report

    @property
    def run_id(self) -> str:
        """Names the run's sessions; the same when it is continued."""
        return str(self._head["run_id"])

    @property
    def results(self) -> Collection[Result]:
        """In the order in which they came."""
        return self._results.values()

    @property
    def builds(self) -> Collection[Build]:
        """In the order in which they came."""
        return self._builds.values()

    def is_done(self, strategy: str, document: str, number: int) -> bool:
        """Returns whether there is an outcome, so that it need not be asked."""
        found = self._results.get((strategy, document, number))
        return found is not None and not found.failure

    def add(self, result: Result) -> None:
        """Adds a result, in place of the one before it."""
        self._results[result.key] = result

    def built(self, build: Build) -> None:
        """Adds what a document cost.

        What the same place said before is in it: the ledger counts from the beginning. Time
        is added.
        """
        key = (build.strategy, build.document, build.place)
        before = self._builds.get(key)
        seconds = build.seconds + (before.seconds if before else 0.0)
        self._builds[key] = replace(build, seconds=seconds)

    def save_soon(self) -> None:
        """Writes it, unless that was done a moment ago."""
        if time.monotonic() - self._written >= WRITE_SECONDS:
            self.write()

    def write(self, **changes: Any) -> None:
        """Writes the whole file, or leaves the one before it. Raises ReportError."""
        self._head.update(changes)
        self._written = time.monotonic()
        if self._path is None:
            return
        json_file(self._path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON."""
        return {
            **self._head,
            "builds": [asdict(one) for one in self._builds.values()],
            "questions": [asdict(one) for one in self._results.values()],
        }


def json_file(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object, as `replace_file`."""
    replace_file(path, f"{json.dumps(value, ensure_ascii=False, indent=1)}\n")


def replace_file(path: Path, text: str) -> None:
    """Writes the whole file, or leaves the one before it. Raises ReportError."""
    try:
        _replace(path, text)
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            # As any file that a program writes, not as a secret.
            Path(file.name).chmod(0o666 & ~_umask())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReportError(f"{path} is not there; without --resume it is begun") from None
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is no report: it is not JSON") from error
    wanted = {"format", "run_id", "settings", "versions", "questions", "builds"}
    if not isinstance(found, dict) or found.keys() & wanted != wanted:
        raise ReportError(f"{path} is no report of this release")
    if not all(isinstance(found[name], dict) for name in ("settings", "versions")):
        raise ReportError(f"{path} is no report of this release")
    if found["format"] != FORMAT:
        raise ReportError(f"{path} is a report of another release; begin another report")
    return found


def _result(held: Mapping[str, Any]) -> Result:
    walk = held["walk"]
    return Result(
        **{
            **held,
            "golds": tuple(held["golds"]),
            "options": tuple(held["options"]),
            "spent": Spent(**held["spent"]),
            "walk": None if walk is None else Walk(**walk),
        }
    )


def _build(held: Mapping[str, Any]) -> Build:
    return Build(**{**held, "spent": Spent(**held["spent"])})
