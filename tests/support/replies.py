"""Replies as models write them, for the fuzzer to start from, and a memory that they meet."""

import json

SOURCE = '''
class Hotel:
    """What guests say."""

    class Person:
        name: str
        age: int
        said: list[str]

    attributes: dict[str, list[str]]
    pairs: dict[str, tuple[str, str]]
    people: list[Person]
    places: dict[str, dict[str, Person]]
    rating: float
    stars: Literal[1, 2, 3, "none"]
    is_open: bool | None
    rows: list[list[int]]
'''

STATE = json.dumps(
    {
        "attributes": {"Food & Beverage": ["limited breakfast"], "it's": ["x", "y", "z"]},
        "pairs": {"design": ["plain", "????"]},
        "people": [{"name": "Ada", "age": 36, "said": []}, {"name": "????"}],
        "places": {"a.b": {"[0]": {"name": "Bob"}}},
        "rating": 3.5,
        "is_open": None,
        "rows": [[1, 2], [3]],
    },
    ensure_ascii=False,
    separators=(",", ":"),
)

_STRUCTURED = {
    "update": [
        {"path": "$.'rating'", "value": 4.5},
        {"path": "$['attributes']['it\\'s']", "value": ["x", "y", "z", "ä 😀"]},
    ],
    "add": [
        {"path": "/people/-", "value": {"name": "Eve", "age": 5, "said": ["hello"]}},
        {"path": "$.attributes.Noise", "value": ["{not} an [object]", 'a "quote" \\ it\'s']},
    ],
    "remove": ["$.people[1]", "$.attributes['it\\'s'][0]", "/rows/0/1"],
}

#: As it is asked for: each value is JSON text, or a text as it is.
_CHANGES = {
    "changes": [
        {"op": "update", "path": "$.'rating'", "value": "4.5"},
        {"op": "add", "path": "$.'people'[2]", "value": '{"name": "Eve", "age": 5, "said": []}'},
        {"op": "add", "path": "$.'attributes'.'Noise'", "value": '["some noise, it\'s \\u00e4"]'},
        {"op": "add", "path": "$.'people'[1].'name'", "value": 'plain "text" \\ \u00e4'},
        {"op": "remove", "path": "$.'rows'[0]", "value": ""},
    ]
}

CORPUS = (
    json.dumps(_CHANGES),
    "```json\n" + json.dumps({"notes": "x", **_CHANGES}, indent=2, ensure_ascii=False) + "\n```",
    '{"changes": []}',
    """[OBJECTS FOR UPDATE]
{"$.'attributes'.'Food & Beverage'": {"update": ["limited breakfast", "good dinners"]}}
{"$.'rating'": {"update": 4}}
[OBJECTS FOR ADD]
{"$.'attributes'.'Noise Level'": {"add": ["some noise at night"]}}
{"$.'pairs'.'material'": {"add": ("aluminium", "????")}}
""",
    """Sure! Here is what changes.

**[OBJECTS FOR UPDATE]**
```json
{}
```
**[OBJECTS FOR ADD]**
```json
{
  "$['people'][2]": {"add": {"name": "Eve", "age": 7, "said": []}},
  "$.attributes.Pool": {"add": ["two pools", "open till nine"]},
  "$.is_open": {"add": true}
}
```
I hope that {this} helps.""",
    """[OBJECTS FOR ADD]
{'$.people[-].name': {'add': 'Zoë "Z" O\\'Hara'}}
{'$.rows[2]': {'add': [1, 2, None, 3,],},}
{'$.attributes.Long': {'add': ['one ' 'string', '''three's''', "raw
newline"]}} # a comment
""",
    """[OBJECTS FOR UPDATE]
{"$.rating": {"update": NaN}}
{"$.stars": {"update": 5}}
{"$.people[0].age": {"update": "37"}}
{"$.attributes": {"update": {}}}
{"$.people[9]": {"update": {"name": "nobody"}}}
{"topics.a": {"update": 1}}
[OBJECTS FOR REMOVE]
$.'people'[1]
- `$.attributes['it\\'s'][1]`
"$.rows[0]",
["$.places.'a.b'", "/attributes/it's/0"]
{"$.rating": {"remove": null}}
""",
    json.dumps(_STRUCTURED, ensure_ascii=False),
    "```json\n" + json.dumps(_STRUCTURED, indent=2) + "\n```",
    json.dumps(
        [
            {"op": "add", "path": "/attributes/x~1y", "value": ["1"]},
            {"op": "replace", "path": "/rating", "value": 1e3},
            {"op": "remove", "path": "/people/0/said"},
            {"op": "move", "from": "/a", "path": "/b"},
        ]
    ),
    """<think>
[OBJECTS FOR ADD]
{"$.attributes.draft": {"add": ["not this"]}}
</think>
[objects for add]:
{"/attributes/kept": ["this \\u00e4 \\ud83d\\ude00 \\n"]}
[TEXT]
{"$.attributes.echo": {"add": ["never"]}}""",
    "I would rather not say anything about {that}.",
)

NOISE = (
    *("{", "}", "[", "]", "(", ")", '"', "'", '"""', "'''", ":", ",", "\\", "#", "//", "\n", "\r"),
    *(
        " ",
        "\t",
        "$",
        "$.",
        "/",
        "[-]",
        "[0]",
        "[999]",
        "[-1]",
        "[-9]",
        "????",
        "null",
        "None",
        "NaN",
        "-Infinity",
    ),
    *("true", "1e999", "0x1f", "9" * 70, "\0", "\\u0000", "\\ud800", "\u2028", "\ufeff", "😀"),
    *(
        "[OBJECTS FOR ADD]\n",
        "[OBJECTS FOR REMOVE]\n",
        "\n[OBJECTS FOR UPDATE]\n",
        "[PATHS]\n",
    ),
    *('{"changes": [', '{"op": "add", "path": "$.rating", "value": "', '\\"', "[]"),
    *('{"$.rating": {"add": ', '{"path": "', '"value": ', '{"add": [', '"remove": [', "<think>"),
    *("</think>\n", "```", "{'$.people[0]': ", '\n{"$.rows": [', '"$.rows[0][-]": ', "1_0", "-"),
)
