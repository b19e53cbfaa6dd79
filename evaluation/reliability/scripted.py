"""A scripted model: it knows what its prompt says of boxes, and nothing else.

It represents a model that follows every step without a mistake and forgets what is not in
its context. All that goes wrong is what summaries lose: each fact that is written again is
lost or garbled with the probability `loss`.
"""

import random
import re

from evaluation.reliability.prompts import STEP_WANTED
from evaluation.reliability.world import BOXES, ITEMS, Kind, Said, known, read
from service.domain.prompting.tokens import estimate_tokens

#: What it answers when its prompt does not say.
UNKNOWN = "unknown"
#: The share of wrong facts that is left out; the others name another thing.
LOST_SHARE = 0.5

_QUESTION = re.compile(r"What does the (\w+) box hold now\?")
#: The marks about texts differ from one deployment to the next; chances must not.
_MARK = re.compile(r"data [0-9a-f]{24}")


class ScriptedModel:
    """Replies to prompts. The same prompt always has the same reply."""

    def __init__(self, *, seed: int, loss: float, state_tokens: int) -> None:
        """`loss` is from 0 to 1; `state_tokens`: of a summary at most, by the estimate."""
        self._seed = seed
        self._loss = loss
        self._state_tokens = state_tokens

    def reply(self, prompt: str) -> str:
        """Returns what it makes of a prompt: an answer, a step of the game, or else a summary."""
        held = known(read(prompt))
        if asked := _QUESTION.search(prompt):
            return held.get(asked[1], UNKNOWN)
        if STEP_WANTED in prompt:
            count = sum(box in held for box in BOXES)
            return f"Thought: I know of {count} boxes what is in them.\nAction: watch on"
        return self._summary(held, prompt)

    def _summary(self, held: dict[str, str], prompt: str) -> str:
        chance = random.Random(f"{self._seed}/{_MARK.sub('', prompt)}")
        written = ""
        for box in sorted(held):
            item = self._rewritten(held[box], chance)
            if item is None:
                continue
            longer = f"{written} {Said(kind=Kind.HOLDS, box=box, item=item).sentence()}".strip()
            # What does not fit is lost.
            if estimate_tokens(longer) > self._state_tokens:
                break
            written = longer
        return written or "Nothing is known of the boxes."

    def _rewritten(self, item: str, chance: random.Random) -> str | None:
        """Returns a fact as it is written again; None when it is left out."""
        if chance.random() >= self._loss:
            return item
        if chance.random() < LOST_SHARE:
            return None
        return chance.choice([other for other in ITEMS if other != item])
