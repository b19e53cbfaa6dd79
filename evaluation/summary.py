"""Sums up the results of a strategy."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from evaluation.measures import RECOVERED_SCORE
from evaluation.report import Build, Result
from evaluation.strategies import Spent, added


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkSummary:
    """The results of navigations (tables 3 and 4, figure 4); None where there is nothing to divide.

    Questions that failed do not count.
    """

    #: Paths with a revert, of all paths.
    stray_ratio: float | None
    #: Paths with a revert whose answer was right, or scored RECOVERED_SCORE, of those with one.
    recovery_rate: float | None
    #: Replies that were a valid action, of all.
    valid_action_rate: float | None
    #: Tokens of prompts and replies to those of the text, the mean: of all paths, and of those
    #: whose answer was right or scored RECOVERED_SCORE.
    text_read: float | None
    text_read_successful: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A strategy's line. Means are over all questions; one that failed counts as 0."""

    strategy: str
    questions: int
    failed: int
    score: float
    exact: float
    f1: float
    rouge_l: float
    #: Shares of the questions with evidence that did not fail; None without such.
    evidence_shown: float | None
    evidence_cited: float | None
    #: The share of the questions whose right answer is in the text, and that did not fail,
    #: with a citation whose characters have it.
    gold_cited: float | None
    #: Questions without an answer, of those that did not fail.
    no_answer_rate: float | None
    #: Questions whose answer is a guess, likewise; the score where those count as 0.
    guessed_rate: float | None
    score_without_guesses: float
    #: What answers cost, and what was done with documents before.
    spent: Spent
    building: Spent
    #: Wall time of a question that did not fail, and of building a document.
    seconds: float | None
    building_seconds: float | None
    walks: WalkSummary | None
    #: Pieces of the log that browsing looked at for a question; None where nothing was browsed.
    pieces: float | None
    #: How often the automatic reader chose what, most often first; empty where it was not asked.
    chosen: dict[str, int]
    #: Tokens of all prompts and replies, those of building included.
    tokens_per_question: float


def summarize(strategy: str, results: Collection[Result], builds: Collection[Build]) -> Summary:
    """Returns the line of a strategy that has results."""
    mine = [one for one in results if one.strategy == strategy]
    done = [one for one in mine if not one.failure]
    built = [one for one in builds if one.strategy == strategy]
    return Summary(
        strategy=strategy,
        questions=len(mine),
        failed=len(mine) - len(done),
        score=sum(one.score for one in mine) / len(mine),
        exact=sum(one.exact for one in mine) / len(mine),
        f1=sum(one.f1 for one in mine) / len(mine),
        rouge_l=sum(one.rouge_l for one in mine) / len(mine),
        evidence_shown=_mean([one.evidence_shown for one in done]),
        evidence_cited=_mean([one.evidence_cited for one in done]),
        gold_cited=_mean([one.gold_cited for one in done]),
        no_answer_rate=_share(sum(bool(one.no_answer) for one in done), len(done)),
        guessed_rate=_share(sum(one.guessed for one in done), len(done)),
        score_without_guesses=sum(one.score for one in mine if not one.guessed) / len(mine),
        spent=added(one.spent for one in mine),
        building=added(one.spent for one in built),
        seconds=_mean([one.seconds for one in done]),
        building_seconds=_mean([one.seconds for one in built]),
        walks=_walks(done),
        pieces=_mean([one.pieces for one in done]),
        tokens_per_question=(_tokens(mine) + _tokens(built)) / len(mine),
        chosen=dict(Counter(one.chosen for one in done if one.chosen).most_common()),
    )


def _tokens(found: Iterable[Result | Build]) -> int:
    return sum(one.spent.input_tokens + one.spent.output_tokens for one in found)


def is_right(result: Result) -> bool:
    """Returns whether an answer counts as right, for recovery and as an example to train with.

    A guess never does.
    """
    if result.guessed:
        return False
    return result.exact == 1.0 if result.options else result.score >= RECOVERED_SCORE


def _walks(done: Collection[Result]) -> WalkSummary | None:
    walked = [(one, one.walk) for one in done if one.walk is not None]
    if not walked:
        return None
    stray = [one for one, walk in walked if walk.reverts]
    right = [walk for one, walk in walked if is_right(one)]
    valid = sum(walk.valid_actions for _, walk in walked)
    invalid = sum(walk.invalid_actions for _, walk in walked)
    return WalkSummary(
        stray_ratio=_share(len(stray), len(walked)),
        recovery_rate=_share(sum(is_right(one) for one in stray), len(stray)),
        valid_action_rate=_share(valid, valid + invalid),
        text_read=_mean([_share(walk.tokens, walk.text_tokens) for _, walk in walked]),
        text_read_successful=_mean([_share(walk.tokens, walk.text_tokens) for walk in right]),
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Collection[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return _share(sum(known), len(known))
