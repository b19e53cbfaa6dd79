"""Replies as models write them: which places and values are read out of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prism.amendments import Op, Rejection
from service.domain.prism.reading import MAX_OBJECTS, read_proposals
from service.domain.prompting.literals import MAX_VALUES
from verification.fuzz.runs import count_calls

ADD, UPDATE, REMOVE = Op.ADD, Op.UPDATE, Op.REMOVE


def read(text: str) -> tuple[list[tuple[Op | None, str, Any]], list[str]]:
    found = list(read_proposals(text))
    return (
        [(one.op, one.path, one.value) for one in found if not isinstance(one, Rejection)],
        [one.reason for one in found if isinstance(one, Rejection)],
    )


@pytest.mark.parametrize(
    ("lines", "paths"),
    [
        ("$.'a'.'b'[0]\n$['c']\n/d/0", ["$.'a'.'b'[0]", "$['c']", "/d/0"]),
        ("\"$.'a'\",\n'/b'\n", ["$.'a'", "/b"]),
        ('"$.a"\n"$.b"\n"$.c"', ["$.a", "$.b", "$.c"]),
        ('["$.a", "$.b"]', ["$.a", "$.b"]),
        ('[\n  "$.a",\n  "$.b",\n]', ["$.a", "$.b"]),
        ("[\n  $.a,\n  $.b\n]", ["$.a", "$.b"]),
        ("- `$.a`\n* $.b\n1. $.c\n 2) `$.d`", ["$.a", "$.b", "$.c", "$.d"]),
        ('{"$.a": {"remove": "old"}}\n{"$.b": null, "$.c": {}}', ["$.a", "$.b", "$.c"]),
        ('[{"path": "$.a"}, {"path": "$.b"}]', ["$.a", "$.b"]),
        ('{"path": "$.a"}\n{"op": "remove", "path": "/b"}', ["$.a", "/b"]),
        ('```json\n["$.a"]\n```\nThat is all.', ["$.a"]),
        ("I would drop these:\n$.a\nbut not that.", ["$.a"]),
        ("{}", []),
        ("(none)", []),
        ("", []),
    ],
)
def test_removals_are_read_in_every_form(lines: str, paths: list[str]) -> None:
    for text in (
        f"[OBJECTS FOR REMOVE]\n{lines}",
        f"**[Objects to delete]**\n{lines}\n[PATHS]\n$.x",
    ):
        assert read(text) == ([(REMOVE, path, None) for path in paths], [])


def test_sections_follow_each_other_in_any_order() -> None:
    text = """Let me see. {"$.draft": {"add": 0}}
[OBJECTS FOR REMOVE]
$.gone
[OBJECTS FOR UPDATE]
{"$.a": {"update": 1}} {"$.b": {"update": 2}}
so much for that
[OBJECTS FOR ADD]
```json
{"$.c": {"add": 3},
 "$.d": {"add": 4}}
```
[TEXT]
{"$.echo": {"add": 5}}"""
    assert read(text) == (
        [
            (REMOVE, "$.gone", None),
            (UPDATE, "$.a", 1),
            (UPDATE, "$.b", 2),
            (ADD, "$.c", 3),
            (ADD, "$.d", 4),
        ],
        [],
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"$.a": {"add": 1}, "$.b": {"update": 2}}', [(ADD, "$.a", 1), (UPDATE, "$.b", 2)]),
        ('{"$.a": {"remove": null}}', [(REMOVE, "$.a", None)]),
        ('[OBJECTS FOR ADD]\n{"$.a": {"remove": null}}', [(REMOVE, "$.a", None)]),
        # A dict that has that key: the header says what is meant.
        ('[OBJECTS FOR ADD]\n{"$.rm": {"remove": "deletes files"}}', None),
        ('[OBJECTS FOR ADD]\n{"$.a": {"add": {"add": 1}}}', [(ADD, "$.a", {"add": 1})]),
    ],
)
def test_the_op_stands_about_the_value_or_in_the_header(text: str, found: Any) -> None:
    assert read(text)[0] == (found or [(ADD, "$.rm", {"remove": "deletes files"})])


STRUCTURED = {
    "update": [{"path": "$.a", "value": {"add": 1}}],
    "add": [{"path": "/b/-", "value": ["x"]}, {"path": "$.c", "value": None}],
    "remove": ["$.d", "$.e[0]"],
}
READ = [
    (UPDATE, "$.a", {"add": 1}),
    (ADD, "/b/-", ["x"]),
    (ADD, "$.c", None),
    (REMOVE, "$.d", None),
    (REMOVE, "$.e[0]", None),
]


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("around", ["%s", "```json\n%s\n```", "Here it is:\n%s\nDone.", "%r"])
def test_a_structured_reply_is_read(indent: int | None, around: str) -> None:
    written = STRUCTURED if around == "%r" else json.dumps(STRUCTURED, indent=indent)
    assert read(around % (written,)) == (READ, [])


@pytest.mark.parametrize("indent", [None, 1])
def test_a_structured_reply_that_is_cut_off_keeps_what_is_whole(indent: int | None) -> None:
    text = json.dumps(STRUCTURED, indent=indent)
    counts = []
    for end in range(len(text)):
        found, rejected = read(text[:end])
        assert found == READ[: len(found)]
        assert len(rejected) <= 1
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(READ)


def test_a_dictionary_that_is_cut_off_keeps_what_is_whole() -> None:
    lines = {f"$.k{n}": {"add": [n, "x"]} for n in range(4)}
    text = "[OBJECTS FOR ADD]\n" + json.dumps(lines, indent=1)
    last = 0
    for end in range(20, len(text) + 1):
        found, _ = read(text[:end])
        assert found == [(ADD, path, entry["add"]) for path, entry in lines.items()][: len(found)]
        assert len(found) >= last
        last = len(found)
    assert last == 4


def test_a_path_that_does_not_end_is_not_removed() -> None:
    text = "[OBJECTS FOR REMOVE]\n$.'facts'.'price'[1]\n$.'facts'"
    assert read(text)[0] == [(REMOVE, "$.'facts'.'price'[1]", None), (REMOVE, "$.'facts'", None)]
    found, rejected = read('{"remove": ["$.a", "$.b')
    assert (found, len(rejected)) == ([(REMOVE, "$.a", None)], 1)


def test_lists_of_a_structured_reply_may_be_less_than_lists() -> None:
    text = '{"update": null, "add": {"path": "$.a", "value": 1}, "remove": "$.b"}'
    assert read(text) == ([(ADD, "$.a", 1), (REMOVE, "$.b", None)], [])
    assert read('{"remove": 3, "add": 3}')[1] == [
        "a path that is no string",
        "it is no object with a path and a value",
    ]


@pytest.mark.parametrize(
    ("header", "op"),
    [
        ("[OBJECTS FOR ADD]", ADD),
        ("### Objects to add:", ADD),
        ("**[OBJECTS FOR ADDITION]**", ADD),
        ("2. OBJECTS FOR UPDATES", UPDATE),
        ("> [Object for updating]", UPDATE),
        ("[OBJECTS TO BE REMOVED]", REMOVE),
        ("[ OBJECTS FOR REMOVAL ]", REMOVE),
        ("`[OBJECTS FOR DELETION]`", REMOVE),
        ("[OBJECTS FOR ADDRESSES]", None),
        ("The OBJECTS FOR ADD", None),
    ],
)
def test_headers_are_read_as_models_write_them(header: str, op: Op | None) -> None:
    found, _ = read(f'{header}\n{{"$.a": {{"update": 1}}}}')
    assert found == [(op or UPDATE, "$.a", None if op is REMOVE else 1)]
    found, _ = read(f'{header}\n{{"$.a": [1]}}')
    assert found == ([(op, "$.a", None if op is REMOVE else [1])] if op else [])


def test_a_section_may_hold_the_lists_of_a_structured_reply() -> None:
    text = '[OBJECTS FOR ADD]\n{"add": [{"path": "$.a", "value": 1}]}\n'
    text += '[OBJECTS FOR REMOVE]\n{"remove": ["$.b"]}'
    assert read(text) == ([(ADD, "$.a", 1), (REMOVE, "$.b", None)], [])


def test_other_writings_of_a_structured_reply_are_read() -> None:
    assert read('{"add": {"$.a": 1}, "Remove": [{"path": "$.b"}]}')[0] == [
        (ADD, "$.a", 1),
        (REMOVE, "$.b", None),
    ]
    patch = [
        {"op": "replace", "path": "/a", "value": 1},
        {"op": "remove", "path": "/b"},
        {"op": "move", "path": "/c", "from": "/d"},
    ]
    found, rejected = read(json.dumps(patch))
    assert found == [(UPDATE, "/a", 1), (REMOVE, "/b", None)]
    assert rejected == ["it says neither add nor update"]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ('{"path": "$.x"}', "it has no value"),
        ('{"value": 1}', "it has no path"),
        ('{"path": 3, "value": 1}', "a path that is no string"),
        ('{"path": "$.x", "value": NaN}', "NaN, which JSON does not have"),
        ('{"path": "$.x", "value": [1 2]}', "neither a comma nor ]"),
        ("3", "it is no object with a path and a value"),
    ],
)
def test_a_broken_item_leaves_those_around_it_alone(item: str, reason: str) -> None:
    def whole(key: str) -> str:
        return json.dumps({"path": f"$.{key}", "value": 1})

    text = f'{{"add": [\n{whole("a")},\n{item},\n{whole("b")}\n],\n"remove": ["$.c"]}}'
    found, rejected = read(text)
    assert found == [(ADD, "$.a", 1), (ADD, "$.b", 1), (REMOVE, "$.c", None)]
    assert len(rejected) == 1
    assert reason in rejected[0]


@pytest.mark.parametrize(
    "broken",
    ['{"add": NaN}', '{"add": [oops]}', '{"add": "x', '{"add": 1e999}', "{['x']: 1}", ""],
)
def test_a_broken_entry_leaves_the_rest_of_its_dictionary_alone(broken: str) -> None:
    text = (
        '[OBJECTS FOR ADD]\n{\n  "$.a": {"add": 1},\n'
        f'  "$.bad": {broken},\n  "$.b": {{"add": 2}},\n  "$.c": {{"add": 3}}\n}}\n'
        '{"$.d": {"add": 4}}'
    )
    found, rejected = read(text)
    assert [path for _, path, _ in found] == ["$.a", "$.b", "$.c", "$.d"]
    assert len(rejected) == 1


def test_thoughts_and_talk_before_the_sections_do_not_count() -> None:
    thoughts = '[OBJECTS FOR ADD]\n{"$.draft": {"add": 1}}\nor rather'
    reply = '[OBJECTS FOR ADD]\n{"$.a": {"add": "</think>"}}'
    assert read(f"<think>\n{thoughts}\n</think>\n{reply}") == ([(ADD, "$.a", "</think>")], [])
    assert read(f"<think>{thoughts}") == read(thoughts)
    assert read(reply)[0] == [(ADD, "$.a", "</think>")]


def test_a_reply_has_a_bounded_number_of_values() -> None:
    many = ",".join(["[[{}]]"] * MAX_VALUES)
    found, rejected = read(f'[OBJECTS FOR ADD]\n{{"$.a": 1}} {{"$.b": [{many}]}} {{"$.c": 2}}')
    assert found == [(ADD, "$.a", 1)]
    assert rejected == [f"a reply has at most {MAX_VALUES} values"]


def test_a_reply_has_a_bounded_number_of_objects() -> None:
    _, rejected = read("{} " * (MAX_OBJECTS + 5))
    assert rejected == [f"a reply has at most {MAX_OBJECTS} objects"]


@pytest.mark.parametrize(
    "piece", ['{"$.a": [1,\n', '{"$.a": {"add": "x\n', "{'$.a': \"\n", '{"\n"$.a": [\n']
)
def test_what_is_broken_again_and_again_ends_in_bounded_work(piece: str) -> None:
    found, rejected = read("[OBJECTS FOR ADD]\n" + piece * 30_000)
    assert found == []
    assert 0 < len(rejected) <= 2 * MAX_OBJECTS + 1


def test_brackets_without_end_are_no_list_of_removals() -> None:
    text = "[OBJECTS FOR REMOVE]\n" + "[" * 50_000
    calls = count_calls(lambda: read(text))
    assert read(text) == ([], [])
    assert calls < 40 * len(text)


@given(
    st.lists(
        st.sampled_from(
            [
                *("[OBJECTS FOR ADD]\n", "[OBJECTS FOR REMOVE]\n", "\n", "{", "}", '"$.a"', ": "),
                *('{"add": ', '"add": [', "]", ",", '{"path": "$.b", "value": ', "1", "'x", '"""'),
                *("<think>", "</think>\n", "```", "$.c", "/d", "NaN", "[TEXT]\n", "\\"),
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_reply_is_read(text: str) -> None:
    for one in read_proposals(text):
        if isinstance(one, Rejection):
            assert one.reason
        else:
            json.dumps(one.value, allow_nan=False)
