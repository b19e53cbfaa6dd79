"""What tests of the reliability experiment share: a plain reader of games, and a game model."""

from collections.abc import Sequence

from evaluation.reliability import experiment, tasks
from evaluation.reliability.outcomes import GameResult
from evaluation.reliability.scripted import ScriptedModel

#: Tokens of a summary in these tests: all boxes fit.
STATE_TOKENS = 200


def by_hand(prompt: str, observations: Sequence[str]) -> dict[str, str]:
    """Returns what boxes hold in the end, by the words of a game alone."""
    held: dict[str, str] = {}
    for sentence in prompt.replace("\n", " ").split(". "):
        words = sentence.strip(". ").split()
        if "holds" in words and words[0] == "The":
            held[words[1]] = words[-1]
    for observation in observations:
        words = observation.replace(",", "").replace(".", "").split()
        boxes = [words[at - 1] for at, word in enumerate(words) if word == "box"]
        match words[3]:
            case "swaps":
                held[boxes[0]], held[boxes[1]] = held[boxes[1]], held[boxes[0]]
            case "empties":
                held[boxes[1]], held[boxes[0]] = held[boxes[0]], "nothing"
            case "clears" if "copy" in words:
                held[boxes[0]] = held[boxes[1]]
            case "clears":
                held[boxes[0]] = words[words.index("new") + 1]
            case other:
                assert other in {"looks", "wonders", "wipes"}, observation
    return held


async def played(
    strategies: Sequence[str],
    todo: Sequence[tasks.Task],
    *,
    loss: float = 0.0,
    window_tokens: int = 2048,
    state_tokens: int = STATE_TOKENS,
) -> list[GameResult]:
    """Games of the strategies that need no service."""
    results: list[GameResult] = []
    run = experiment.Experiment(
        None,
        experiment.Settings(
            window_tokens=window_tokens,
            state_tokens=state_tokens,
            retrieved=20,
            concurrency=4,
            timeout_seconds=60.0,
        ),
        run_id="test",
        scripted=ScriptedModel(seed=1, loss=loss, state_tokens=state_tokens),
        access=None,
        model="",
        on_result=results.append,
    )
    await run.run(strategies, todo)
    return results
