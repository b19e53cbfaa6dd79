"""Concurrency limiter: each key has so many slots, and no more."""

import pytest

from service.domain.values.errors import Exhausted
from service.domain.values.reasons import Reason
from service.usecases.log.concurrency_limiter import ConcurrencyLimiter


def test_each_key_has_its_slots_and_gets_them_back() -> None:
    limiter = ConcurrencyLimiter(2, reason=Reason.TOO_MANY_CALLS, what="calls")
    with limiter.slot("a"), limiter.slot("a"):
        with limiter.slot("b"):
            pass
        with pytest.raises(Exhausted, match="2 calls") as refused, limiter.slot("a"):
            pass
        assert refused.value.reason is Reason.TOO_MANY_CALLS
    with pytest.raises(ValueError, match="broken"), limiter.slot("a"):
        raise ValueError("broken")
    with limiter.slot("a"), limiter.slot("a"):
        pass
    assert not limiter._taken, "nothing is kept of a key without calls"
