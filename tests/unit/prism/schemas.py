"""Schemas for property tests: any tree of types that a schema can be."""

from hypothesis import strategies as st

from service.domain.prism.schemas.limits import Measures, literal, normal_doc, optional
from service.domain.prism.schemas.names import RESERVED, is_name
from service.domain.prism.schemas.tree import (
    DictType,
    Field,
    ListType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
)

#: Names of fields, of several scripts.
names = st.sampled_from(
    [
        *("a", "b", "c", "x", "y", "name", "Name", "f1", "_", "_x", "__init__", "self"),
        *("match", "type", "list", "Literal", "Optional", "größe", "имя", "όνομα", "名前", "नाम"),
    ]
) | st.text("aZ_9éж名", min_size=1, max_size=6).filter(is_name)

class_names = names.filter(lambda name: name not in RESERVED)

#: Guidance in the form in which a schema holds it.
docs = st.one_of(
    st.just(""),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    st.text(st.sampled_from("\"'\\ \n\tab#{}"), max_size=12),
    st.lists(
        st.sampled_from(["  a", "    b", "c ", "", "\xa0d", "\x0ce", '"""', "\\"]), max_size=5
    ).map("\n".join),
).map(normal_doc)

_whole = st.integers(-(10**63), 10**63)
_scalars: st.SearchStrategy[Type] = st.sampled_from(
    [Scalar.STR, Scalar.INT, Scalar.FLOAT, Scalar.BOOL]
)
_literals = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), _whole)
    | st.booleans(),
    min_size=1,
    max_size=4,
).map(literal)


def types(records: list[RecordType]) -> st.SearchStrategy[Type]:
    """Types that use some of these records."""
    leaves: st.SearchStrategy[Type] = st.one_of(_scalars, _literals)
    if records:
        leaves = leaves | st.sampled_from(records)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda of: ListType(item=of)),
            inner.map(lambda of: DictType(value=of)),
            inner.map(optional),
            st.lists(inner, min_size=1, max_size=3).map(lambda of: TupleType(items=tuple(of))),
        ),
        max_leaves=2,
    )


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Schemas of up to four records, each of which may be used more than once."""
    records: list[RecordType] = []
    for name in draw(st.lists(class_names, min_size=1, max_size=4, unique=True)):
        fields = [
            Field(name=field, type=draw(types(records)), doc=draw(docs))
            for field in draw(st.lists(names, min_size=1, max_size=3, unique=True))
        ]
        record = RecordType(name=name, fields=tuple(fields), doc=draw(docs))
        if not Measures().excess(record):
            records.append(record)
    return Schema(root=records[-1])
