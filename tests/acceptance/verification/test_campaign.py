"""A short campaign: a whole deployment with every kind of fault in it loses nothing."""

import pytest

from verification.chaos import campaign
from verification.chaos.schedule import Kind

SEED = 1
SECONDS = 20.0
#: A machine that runs other tests too may be slow; a run with fewer would show nothing.
CHUNKS = 200


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_made_twice_while_everything_fails() -> None:
    result = campaign.run(SEED, SECONDS, chunks=CHUNKS, rate=2.0)
    assert result["wrong"] == [], result
    made = {*result["faults_by_kind"], *result["faults_missed"]}
    assert made == {kind.value for kind in Kind}
    assert result["chunks_acked"] >= CHUNKS
    assert result["checked"]["chunks"] >= result["chunks_acked"]
    assert result["checked"]["requests"] > 0
