"""The small model: refusals of a log, folds of amendments, vectors in use."""

import pytest

from verification.chaos.model import Chain, FoldError, Levels, Log, Refusal, Value, fold, parse_path


def test_a_log_gives_each_chunk_a_position_and_resends_their_own() -> None:
    log = Log()
    assert log.append("a", 0, [1, 2], ["x", "y"]) == 2
    assert log.append("b", 0, [1], ["z"]) == 3
    assert log.append("a", 0, [2, 3], ["y", "w"]) == 4
    assert [log.place(position) for position in range(5)] == [
        None,
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("a", 3),
    ]
    assert log.position("a", 3) == 4
    assert log.position("a", 4) is None


@pytest.mark.parametrize(
    ("epoch", "sequences", "contents", "expected_head", "reason"),
    [
        (1, [3], ["w"], None, "PRODUCER_FENCED"),
        (2, [3], ["w"], 1, "HEAD_MISMATCH"),
        (2, [4], ["w"], None, "SEQUENCE_GAP"),
        (2, [3, 5], ["w", "v"], None, "SEQUENCE_GAP"),
        (2, [2, 3], ["other", "w"], None, "SEQUENCE_CONTENT_CHANGED"),
    ],
)
def test_a_log_refuses_what_is_not_due_and_stays_as_it_is(
    epoch: int, sequences: list[int], contents: list[str], expected_head: int | None, reason: str
) -> None:
    log = Log()
    log.append("a", 2, [1, 2], ["x", "y"])
    with pytest.raises(Refusal) as refused:
        log.append("a", epoch, sequences, contents, expected_head)
    assert refused.value.reason == reason
    assert (log.head, log.producers["a"].epoch) == (2, 2)


def test_opening_fences_lower_epochs_and_says_the_last_sequence() -> None:
    log = Log()
    log.append("a", 1, [1], ["x"])
    assert log.open("a", 3) == 1
    for epoch, head, reason in ((2, None, "PRODUCER_FENCED"), (3, 7, "HEAD_MISMATCH")):
        with pytest.raises(Refusal, match=reason):
            log.open("a", epoch, head)


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ("$", ()),
        ("$['a'][0]['b c']", ("a", 0, "b c")),
        (r"$['it\'s']['\\n\n\u0001']", ("it's", "\\n\n\x01")),
        ("$['0']", ("0",)),
    ],
)
def test_a_normalized_path_is_read(path: str, tokens: tuple[str | int, ...]) -> None:
    assert parse_path(path) == tokens


@pytest.mark.parametrize("path", ["$.a", "$['a", "$[a]", "$['a']x"])
def test_what_is_no_normalized_path_is_not(path: str) -> None:
    with pytest.raises(FoldError):
        parse_path(path)


def test_amendments_fold_in_their_order() -> None:
    folded = fold(
        {"known": "????"},
        [
            ("$['list'][0]", "add", '"x"'),
            ("$['list'][1]", "add", '"y"'),
            ("$['known']['deep']", "add", "1"),
            ("$['list'][0]", "update", '{"a":null}'),
            ("$['list'][1]", "remove", None),
            ("$['list'][0]['a']", "update", "true"),
        ],
    )
    assert folded == {"known": {"deep": 1}, "list": [{"a": True}]}
    assert fold({"a": 1}, [("$", "update", "{}")]) == {}


@pytest.mark.parametrize(
    "amendment",
    [
        ("$['a']['b']", "add", "1"),
        ("$['list'][2]", "add", "1"),
        ("$['gone']", "remove", None),
        ("$", "remove", None),
        ("$['x']", "add", None),
    ],
)
def test_an_impossible_amendment_is_reported(amendment: tuple[str, str, str | None]) -> None:
    with pytest.raises(FoldError):
        fold({"a": 1, "list": [1]}, [amendment])


def test_a_fold_may_move_keys_and_nothing_else() -> None:
    value = Value()
    value.apply("step", [("$['a']", "add", "1"), ("$['b']", "add", "2")])
    assert not value.equals('{"b":2,"a":1}')
    value.apply("fold", [])
    assert not value.equals('{"b":2,"a":2}')
    assert value.equals('{"b":2,"a":1}')
    assert not value.equals('{"a":1,"b":2}')


def test_a_rollback_restores_what_was() -> None:
    value = Value()
    before = value.snapshot()
    value.apply("step", [("$['a']", "add", "1")])
    value.apply("rollback", [], before)
    assert value.equals("{}")


def test_a_chain_says_what_breaks_it() -> None:
    chain = Chain()
    assert chain.commit(revision=0, parent=None, begin=0, end=0, kind="create") == []
    assert chain.commit(revision=1, parent=0, begin=0, end=3, kind="step") == []
    wrong = chain.commit(revision=3, parent=1, begin=2, end=2, kind="skip")
    assert [promise for promise, _ in wrong] == ["revisions", "revisions", *["applied-once"] * 2]


def test_episodes_take_over_what_their_level_made() -> None:
    levels = Levels()
    for number in (1, 2):
        levels.step(number, 3 * (number - 1), 3 * number)
    levels.keep(2)
    episode, children = levels.episode(3, 2)
    assert episode is not None
    assert (episode.after, episode.begin, episode.end, children) == (0, 0, 6, [1, 2])
    vector = levels.step(4, 6, 9)
    assert (vector.after, vector.begin, vector.end) == (6, 6, 9)
    assert [(one.after, one.end) for one in levels.in_use()] == [(0, 6), (6, 9)]
    assert levels.episode(5, 4) == (None, [])
    levels.rollback(2)
    assert [(one.after, one.end) for one in levels.in_use()] == [(0, 6)]
    assert levels.runs == [[1, 2]]
