"""The optimum: the cheapest times to fold a memory at, if its log is known in advance."""

from service.domain.prism.folding import prefix
from service.domain.spend.prices import CacheFamily, ModelPrices
from service.domain.values.beginnings import common_characters

#: Candidates that the search looks at again after this many steps.
PRUNE_STEPS = 16
#: Candidates that each other one is compared with then.
RIVALS = 6
#: Candidates that are kept at most: where more are left, as in long streams whose prices
#: make waiting free, the dearest are dropped, and the result is the best of the others.
MAX_CANDIDATES = 1000


class Optimum:
    """The cheapest times to fold at, for one layout of the keys: a dynamic program.

    It is fed with the steps in their order. After k of them it holds, for each step at
    which the last fold may have been, the least that the prompts so far can have cost;
    folding now continues the cheapest. A candidate is dropped only when another one is
    ahead by more than it could ever make good, so that what is left is exact.
    """

    def __init__(
        self, prices: ModelPrices, *, base: str, base_tokens: int, task_tokens: int, density: float
    ) -> None:
        self._prices = prices
        self._task = task_tokens
        #: Costs are a price times tokens: nothing is rounded, nothing too short.
        self._is_linear = prices.granularity_tokens == 1 and prices.min_tokens == 0
        #: Tokens that a character has at most.
        self._density = density
        self._since = 0
        self._last = base
        # One entry a candidate: cost so far, tokens shown, characters that its base and the
        # newest state begin with alike, the base, and the folds it made.
        self._cost = [0.0]
        self._shown = [base_tokens]
        self._same = [len(base)]
        self._base = [base]
        self._folds: list[tuple[object, ...]] = [()]
        self._step = 0

    def step(self, text: str, live: int, fresh: int, *, cold: bool, left: int) -> None:
        """One more prompt: over a state, its tokens, and those of its last amendments.

        `left` prompts come after it.
        """
        self._follow(text)
        best, number = self._cheapest_fold(text, live, cold)
        self._keep(fresh, cold)
        self._cost.append(best)
        self._shown.append(live)
        self._same.append(len(text))
        self._base.append(text)
        self._folds.append((self._folds[number], self._step))
        self._step += 1
        self._since += 1
        if self._since >= max(PRUNE_STEPS, len(self._cost) // 8):
            self._prune(left)
            self._since = 0

    def result(self) -> tuple[float, tuple[int, ...]]:
        """Returns the least cost, and the steps before whose prompts it folds, from 0 on."""
        best = min(range(len(self._cost)), key=self._cost.__getitem__)
        folds: list[int] = []
        chain = self._folds[best]
        while chain:
            folds.append(chain[1])  # type: ignore[arg-type]
            chain = chain[0]  # type: ignore[assignment]
        return self._cost[best], tuple(reversed(folds))

    def _follow(self, text: str) -> None:
        """Compares the bases with the newest state, by way of the state before."""
        turn = common_characters(self._last, text)
        self._last = text
        for number, same in enumerate(self._same):
            if same > turn:
                self._same[number] = turn
            elif same == turn:
                # It differed from the last state there, and may be as it was again.
                base = self._base[number]
                if base[turn : turn + 1] == text[turn : turn + 1]:
                    self._same[number] = common_characters(base, text, turn)

    def _cheapest_fold(self, text: str, live: int, cold: bool) -> tuple[float, int]:
        """Returns the least cost of folding now, and the candidate that it continues."""
        prices, task, length = self._prices, self._task, len(text)
        if prices.family is CacheFamily.EXPLICIT:
            kept = [live if same == length else 0 for same in self._same]
        else:
            kept = [live * same // length for same in self._same]
        tokens = task + live
        if self._is_linear:
            # All of it written, less what is saved for each token that is read instead.
            wide = 0.0 if cold else prices.write - prices.read
            whole = tokens * prices.write - wide * task
            costs = [
                cost + whole - wide * warm for cost, warm in zip(self._cost, kept, strict=True)
            ]
        else:
            known = {
                warm: prefix(tokens, 0 if cold else task + warm, prices).cost(prices)
                for warm in set(kept)
            }
            costs = [cost + known[warm] for cost, warm in zip(self._cost, kept, strict=True)]
        best = min(costs)
        return best, costs.index(best)

    def _keep(self, fresh: int, cold: bool) -> None:
        """Adds what each candidate's prompt costs when it does not fold."""
        prices, task = self._prices, self._task
        self._shown = [tokens + fresh for tokens in self._shown]
        if self._is_linear:
            each = prices.write if cold else prices.read
            more = task * each + (0.0 if cold else (prices.write - prices.read) * fresh)
            self._cost = [
                cost + more + each * tokens
                for cost, tokens in zip(self._cost, self._shown, strict=True)
            ]
            return
        known = {
            tokens: prefix(task + tokens, 0 if cold else task + tokens - fresh, prices).cost(prices)
            for tokens in set(self._shown)
        }
        self._cost = [
            cost + known[tokens] for cost, tokens in zip(self._cost, self._shown, strict=True)
        ]

    def _prune(self, left: int) -> None:
        count = len(self._cost)
        rivals = sorted(range(count), key=self._cost.__getitem__)[:RIVALS]
        rivals.append(count - 1)
        alive = [
            number
            for number in range(count)
            if not any(self._beats(rival, number, left) for rival in rivals)
        ]
        if len(alive) > MAX_CANDIDATES:
            alive = sorted(sorted(alive, key=self._cost.__getitem__)[:MAX_CANDIDATES])
        for name in ("_cost", "_shown", "_same", "_base", "_folds"):
            held = getattr(self, name)
            setattr(self, name, [held[number] for number in alive])

    def _beats(self, rival: int, number: int, left: int) -> bool:
        """Returns whether, whatever comes, `rival` is never dearer than `number` from now on."""
        ahead = self._cost[number] - self._cost[rival]
        if rival == number or ahead < 0 or (ahead == 0 and rival < number):
            return False
        prices, task = self._prices, self._task
        shown, other = self._shown[number], self._shown[rival]
        if task + min(shown, other) < prices.min_tokens:
            return False
        wide = max(prices.write - prices.read, 0.0)
        # A later fold may find more of this base than of the rival's.
        same = min(self._same[number], self._same[rival])
        if prices.family is CacheFamily.EXPLICIT:
            same = 0
        more = (len(self._base[number]) - same) * self._density + prices.granularity_tokens
        if prices.min_tokens:
            more += prices.min_tokens + task
        # Until then the rival may pay more a prompt.
        dearer = prices.read * (other - shown) + wide * (prices.granularity_tokens - 1)
        return ahead >= wide * more + max(dearer, 0.0) * left
