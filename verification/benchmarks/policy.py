"""Measures what folding by price costs, against every fixed policy and the offline optimum.

`value` is the mean of the cost of `adaptive` divided by that of the best schedule with
knowledge of the stream; over the recorded streams, or the made-up ones when there are
no others. Costs are those of whole prompts and replies; `prefix only` leaves out what no
policy changes, the chunks and the replies. Nothing is asked and nothing measured in
seconds: the same streams give the same figures everywhere.
"""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.hindsight.schedules import best_of_all
from service.domain.prism.prompts import amendment_line
from service.domain.prism.schedules import LoggedStep, StepLog, Tokens, compare_all, scheduled
from service.domain.prompting.tokens import estimate_tokens
from service.domain.spend.prices import CacheFamily, ModelPrices
from tests import ROOT
from verification.benchmarks.streams import ANY, Stream, recorded, synthetic

#: Recorded streams lie beside the repository, not in it.
RECORDED = ROOT.parent / "shared" / "data" / "revisions"
CHUNK_TOKENS = (500, 1000, 4000)
EVERY = 10
POLICIES = ("in_place", "amendments", "every_10", "adaptive")
#: Without chunks and replies.
ALONE = "prefix only"
GOALS = "mean <= 1.01, 95th percentile <= 1.03, worst <= 1.05"


def _prices(read: float, write: float, output: float) -> ModelPrices:
    return ModelPrices(
        family=CacheFamily.PLAIN,
        input_usd=None,
        read=read,
        write=write,
        output=output,
        granularity_tokens=1,
        min_tokens=0,
        ttl_seconds=300,
    )


#: The last is the index of the PRISM paper: what is cached costs nothing.
PRICES = {
    "r.1 w1.25 o5": _prices(0.1, 1.25, 5),
    "r.5 w1 o4": _prices(0.5, 1, 4),
    "r0 w1 o3": _prices(0, 1, 3),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One stream at one price: what the prefixes of all prompts cost, and all replies."""

    name: str
    steps: int
    prices: str
    prefix: dict[str, float]
    optimum: float
    replies: float

    def ratio(self, policy: str, chunk_tokens: int) -> float:
        """Returns the cost of all steps, divided by the optimum's."""
        fixed = self.replies + chunk_tokens * self.steps
        return (self.prefix[policy] + fixed) / (self.optimum + fixed)

    def against_fixed(self, chunk_tokens: int) -> float:
        """Returns the cost of `adaptive`, divided by that of the better of the two pure ways."""
        fixed = self.replies + chunk_tokens * self.steps
        better = min(self.prefix["in_place"], self.prefix["amendments"])
        return (self.prefix["adaptive"] + fixed) / (better + fixed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument(
        "--streams",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="JSON Lines files of other streams, or folders of them",
    )
    parser.add_argument(
        "--synthetic", type=int, default=300, help="how many made-up streams (default 300)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the made-up streams (default 1)")


def run(_: float, *, streams: Sequence[Path], synthetic: int, seed: int) -> dict[str, Any]:
    """Measures; see the module. It takes as long as the streams take."""
    groups = _groups(streams, synthetic, seed)
    report: dict[str, Any] = {}
    with ProcessPoolExecutor() as pool:
        for name, of_group in groups.items():
            results = [one for some in pool.map(measure, of_group) for one in some]
            if results:
                report[name] = _report(name, results)
    first: dict[str, Any] = next(iter(report.values()), {"rows": {}})
    means = [row["adaptive"][0] for label, row in first["rows"].items() if ALONE not in label]
    value = round(statistics.mean(means), 4) if means else None
    return {"value": value, "goal": GOALS, "groups": report}


def _groups(paths: Sequence[Path], count: int, seed: int) -> dict[str, Iterable[Stream]]:
    groups: dict[str, Iterable[Stream]] = {}
    for path in paths:
        if not path.exists():
            raise SystemExit(f"there is nothing at {path}")
        groups[str(path)] = recorded(path)
    if RECORDED.is_dir():
        groups["recorded"] = recorded(RECORDED)
    else:
        print(f"No recorded streams: there is no folder {RECORDED}.")
    if count:
        groups["made up"] = synthetic(count, seed)
    return groups


def measure(stream: Stream) -> Sequence[Result]:
    """Returns what one stream costs at all prices."""
    log = StepLog(
        schema=ANY,
        steps=[
            LoggedStep(
                amendments=step,
                chunk_tokens=0,
                output_tokens=estimate_tokens("".join(map(amendment_line, step))),
            )
            for step in stream.steps
        ],
    )
    results: list[Result] = []
    every = range(EVERY, len(log.steps), EVERY)
    many = list(PRICES.values())
    compared = zip(compare_all(log, many), best_of_all(log, many), strict=True)
    for (name, prices), (found, optimum) in zip(PRICES.items(), compared, strict=True):
        prefix = partial(_prefix, prices=prices)
        results.append(
            Result(
                name=stream.name,
                steps=len(log.steps),
                prices=name,
                prefix={
                    "in_place": prefix(found.in_place),
                    "amendments": prefix(found.amendments),
                    "every_10": prefix(scheduled(log, prices, every)),
                    "adaptive": prefix(found.adaptive),
                },
                optimum=prefix(optimum),
                replies=optimum.output * prices.output,
            )
        )
    return results


def _prefix(tokens: Tokens, prices: ModelPrices) -> float:
    return tokens.cost(prices) - tokens.output * prices.output


def _report(name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Returns the figures of one group of streams, which are printed as well."""
    count = len(results) // len(PRICES)
    print(f"\n{name}: {count} streams, {sum(one.steps for one in results) // len(PRICES)} steps")
    print(f"cost / optimum: mean, 95th percentile, worst{'':>17}" + _columns(POLICIES))
    rows: dict[str, Any] = {}
    for prices in PRICES:
        some = [one for one in results if one.prices == prices]
        for chunk_tokens in CHUNK_TOKENS:
            label = f"{prices}, chunks of {chunk_tokens}"
            row: dict[str, Any] = {
                policy: _spread([one.ratio(policy, chunk_tokens) for one in some])
                for policy in POLICIES
            }
            against = [(one.against_fixed(chunk_tokens), one.name) for one in some]
            row["against_better_fixed"] = [round(max(against)[0], 4), max(against)[1]]
            row["against_better_fixed_over_1.01"] = sum(ratio > 1.01 for ratio, _ in against)
            worst = max(some, key=lambda one: one.ratio("adaptive", chunk_tokens))
            row["worst_stream"] = worst.name
            rows[label] = row
            print(f"{label:<61}" + _columns([_shown(row[policy]) for policy in POLICIES]))
        alone = {p: _spread([one.prefix[p] / one.optimum for one in some]) for p in POLICIES}
        rows[f"{prices}, {ALONE}"] = alone
        print(f"{f'{prices}, {ALONE}':<61}" + _columns([_shown(alone[p]) for p in POLICIES]))
    met = all(
        row["adaptive"][0] <= 1.01 and row["adaptive"][1] <= 1.03 and row["adaptive"][2] <= 1.05
        for label, row in rows.items()
        if ALONE not in label
    )
    return {"streams": count, "goals_met": met, "rows": rows}


def _spread(ratios: Sequence[float]) -> list[float]:
    ordered = sorted(ratios)
    at = min(int(len(ordered) * 0.95), len(ordered) - 1)
    return [round(one, 4) for one in (statistics.mean(ordered), ordered[at], ordered[-1])]


def _columns(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>25}" for cell in cells)


def _shown(spread: Sequence[float]) -> str:
    return " ".join(f"{one:.4f}" for one in spread)
