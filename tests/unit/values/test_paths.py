import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.values.json_values import MAX_DEPTH, canonical, checked, parse
from service.domain.values.paths import MAX_KEY_CHARACTERS, MAX_PATH_DEPTH, Path, PathError

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("$.'attributes'.'Food & Beverage'", ("attributes", "Food & Beverage")),
        ("$.'table_descriptions'. 'Singers'", ("table_descriptions", "Singers")),
        ('$."a"."b.c"', ("a", "b.c")),
        ("$.places.food", ("places", "food")),
        ("$.'a.b'[2]", ("a.b", 2)),
        ("$.a[-]", ("a", "-")),
        ("$.a[-1]", ("a", -1)),
        ("$['a']['it\\'s'][0]", ("a", "it's", 0)),
        ("$['\\ud83d\\ude00']", ("😀",)),
        ("$.'it's a key'.'b'", ("it's a key", "b")),
        ("/a/0/c~1d~0e", ("a", "0", "c/d~e")),
        ("$", ()),
    ],
)
def test_every_way_of_writing_is_read(text: str, tokens: tuple[str | int, ...]) -> None:
    assert Path.parse(text).tokens == tokens


@given(st.lists(KEYS | st.integers(0, 10**9), max_size=8))
def test_a_path_survives_being_written(tokens: list[str | int]) -> None:
    path = Path(tuple(tokens))
    assert Path.parse(str(path)) == path


@given(st.text(max_size=200))
def test_any_text_is_a_path_or_a_path_error(text: str) -> None:
    try:
        path = Path.parse(text)
    except PathError as error:
        assert str(error)
    else:
        assert Path.parse(str(path)) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "$.",
        "$.'open",
        "$['a'",
        "$.'\\q'",
        "$." + "'k'." * MAX_PATH_DEPTH + "'k'",
        "$.'" + "k" * (MAX_KEY_CHARACTERS + 1) + "'",
        "$.'a\0b'",
    ],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(PathError):
        Path.parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_canonical_text_is_read_back(value: object) -> None:
    if value in (float("inf"), float("-inf")):
        return
    try:
        text = canonical(checked(value))
    except ValueError:
        return
    assert canonical(parse(text)) == text


@pytest.mark.parametrize("sign", [1, -1])
def test_what_may_be_stored_can_be_read_again(sign: int) -> None:
    largest = sign * (10**64 - 1)
    assert parse(canonical(checked(largest))) == largest
    for refused in (largest + sign, sign * 10**5000):
        with pytest.raises(ValueError, match="64 digits"):
            checked(refused)


def test_as_many_values_are_read_as_the_caller_allows() -> None:
    text = canonical([0] * 11)
    assert parse(text, max_nodes=12) == [0] * 11
    with pytest.raises(ValueError, match="too many"):
        parse(text, max_nodes=11)


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "1" * 65,
        "-" + "1" * 65,
        "1e999",
        '"a\\u0000b"',
        '"\\ud800"',
        "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
        "[" * 100_000,
        "[" + "1," * 10_001 + "1]",
        "{",
    ],
)
def test_values_beyond_the_limits_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence differs, that it is one counts
        parse(text)
