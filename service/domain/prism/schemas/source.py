"""Schemas as Python class source, as in the PRISM paper's listings 1 to 6.

The source is parsed with `ast` and never run. What a schema cannot hold is refused
with its line and column.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import EllipsisType
from typing import NoReturn

from service.domain.prism.schemas.limits import (
    MAX_FIELDS,
    MAX_NESTING,
    MAX_SHOWN_BYTES,
    Measures,
    checked_literal,
    literal,
    normal_doc,
    optional,
)
from service.domain.prism.schemas.names import RESERVED
from service.domain.prism.schemas.source_text import SourceText, parse_python, read_text, regrouped
from service.domain.prism.schemas.tree import (
    DictType,
    Field,
    ListType,
    RecordType,
    Scalar,
    Schema,
    TupleType,
    Type,
    render,
)
from service.domain.values.errors import SchemaInvalid
from service.domain.values.json_values import check_text
from service.domain.values.paths import MAX_KEY_CHARACTERS

#: Type brackets within one another: each level of a value may be one "or None".
_MAX_BRACKETS = 2 * MAX_NESTING + 1
#: Steps from a definition to one further down, and on from there.
_MAX_STEPS = 4 * MAX_NESTING

_SCALARS: dict[str, Type] = {one.value: one for one in Scalar}
_LISTS = {"list", "List"}
_DICTS = {"dict", "Dict"}
_TUPLES = {"tuple", "Tuple"}
#: Those of a TypedDict's fields; any part of a memory may be missing.
_QUALIFIERS = {"Required", "NotRequired"}


def parse_source(source: str) -> Schema:
    """Returns the schema that `source` writes down. Raises SchemaInvalid.

    The memory's record is the one top-level class that no other one uses; when several
    are left over, the last of them. Lines and columns of a refusal count from 1, in
    characters of the source with its tabs written as blanks.
    """
    text = read_text(source)
    try:
        schema = _SourceReader(text).read()
    except RecursionError as error:
        raise SchemaInvalid("this is nested too deeply to be read", line=1, column=1) from error
    if len(render(schema).encode()) > MAX_SHOWN_BYTES:
        why = f"written out, the schema has more than {MAX_SHOWN_BYTES} bytes"
        raise SchemaInvalid(why, line=1, column=1)
    return schema


@dataclass(kw_only=True, slots=True)
class _Scope:
    """The names of a class body, or of the module."""

    #: What was read.
    known: dict[str, Type] = field(default_factory=dict)
    #: What was not yet read. As with annotations that are quoted, the order of classes
    #: does not matter.
    later: dict[str, ast.ClassDef | ast.Assign] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Iterable[ast.stmt]) -> "_Scope":
        """Returns the scope of a body of which nothing was read."""
        scope = cls()
        for statement in body:
            match statement:
                case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                    scope.later.setdefault(name, statement)
        return scope


class _SourceReader:
    """Reads one source."""

    def __init__(self, text: SourceText) -> None:
        self._text = text
        self._fields = 0
        #: Innermost last.
        self._scopes: list[_Scope] = []
        #: Classes being read, from the outermost.
        self._open: list[str] = []
        #: Brackets and definitions around the one being read, where each asked for the next.
        self._steps = 0
        #: Definitions that were read before their turn.
        self._early: set[ast.stmt] = set()
        self._records: set[str] = set()
        self._used: set[str] = set()
        self._measures = Measures()

    def read(self) -> Schema:
        """Returns the schema of a module."""
        body = regrouped(self._text.tree.body)
        self._scopes.append(_Scope.of(body))
        for statement in body:
            match statement:
                case ast.ClassDef() | ast.Assign():
                    self._define(statement)
                case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                    pass
                case ast.Import() | ast.ImportFrom():
                    self._refuse(statement, "a schema needs no imports")
                case _:
                    self._refuse(statement, "a schema holds classes only")
        names = [statement.name for statement in body if isinstance(statement, ast.ClassDef)]
        free = [self._scopes[0].known[name] for name in names if name not in self._used]
        if not free or not isinstance(free[-1], RecordType):
            raise SchemaInvalid("there is no class", line=1, column=1)
        return Schema(root=free[-1])

    def _define(self, node: ast.ClassDef | ast.Assign) -> None:
        """Reads a class or an alias, unless something above it has asked for it."""
        if node in self._early:
            return
        if isinstance(node, ast.ClassDef):
            self._scopes[-1].later.pop(node.name, None)
            self._class(node)
        else:
            self._alias(node)

    def _look_ahead(self, by: ast.Name, name: str, depth: int) -> Type | None:
        """Returns what a name means that is defined further down."""
        for level in range(len(self._scopes) - 1, -1, -1):
            node = self._scopes[level].later.get(name)
            if node is not None:
                if self._steps > _MAX_STEPS:
                    self._refuse(by, f"this stands deeper than {_MAX_STEPS} steps")
                inner, self._scopes = self._scopes, self._scopes[: level + 1]
                self._steps += depth + 1
                self._define(node)
                self._steps -= depth + 1
                self._scopes = inner
                self._early.add(node)
                return inner[level].known[name]
        return None

    def _class(self, node: ast.ClassDef) -> None:
        scope = self._scopes[-1]
        if len(self._open) >= MAX_NESTING:
            self._refuse(node, f"classes are nested deeper than {MAX_NESTING} levels")
        self._check_name(node, node.name)
        if node.name in RESERVED:
            self._refuse(node, f"{node.name!r} is a type; a class needs another name")
        # One name for one record: the model is shown them side by side.
        if node.name in self._records or node.name in scope.known:
            self._refuse(node, f"{node.name!r} is defined twice")
        self._records.add(node.name)
        self._check_header(node)
        self._open.append(node.name)
        self._scopes.append(_Scope.of(node.body))
        fields = self._body(node)
        self._scopes.pop()
        self._open.pop()
        if not fields:
            why = f"{node.name} has no fields"
            self._refuse(node, f"{why}; what belongs to it is indented below it")
        doc = self._doc(node, ast.get_docstring(node, clean=False) or "")
        record = RecordType(name=node.name, fields=tuple(fields), doc=doc)
        self._check_measure(node, record)
        scope.known[node.name] = record

    def _check_header(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self._check_decorator(decorator)
        for base in node.bases:
            if not _dotted(base):
                self._refuse(base, "a base class must be a name")
        for keyword in node.keywords:
            # TypedDict's: whether parts may be missing, which they may in any memory.
            if keyword.arg != "total":
                self._refuse(keyword.value, "a class takes no keywords")

    def _check_decorator(self, node: ast.expr) -> None:
        # dataclass(frozen=True) says nothing about the schema, and is common.
        called = node.func if isinstance(node, ast.Call) else node
        name = _dotted(called)
        if not name or (isinstance(node, ast.Call) and not name.endswith("dataclass")):
            self._refuse(node, "a decorator must be a name, such as dataclasses.dataclass")

    def _body(self, node: ast.ClassDef) -> list[Field]:
        fields: list[Field] = []
        for number, statement in enumerate(node.body):
            match statement:
                case ast.ClassDef() | ast.Assign():
                    self._define(statement)
                case ast.AnnAssign():
                    following = node.body[number + 1] if number + 1 < len(node.body) else None
                    fields.append(self._field(statement, following, fields))
                case ast.Expr(value=ast.Constant(value=str() | EllipsisType())) | ast.Pass():
                    pass
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._refuse(statement, "a schema has fields, not methods")
                case _:
                    self._refuse(statement, "a class of a schema holds fields and classes only")
        return fields

    def _field(self, node: ast.AnnAssign, following: ast.stmt | None, before: list[Field]) -> Field:
        if not isinstance(node.target, ast.Name):
            self._refuse(node, "a field must be a plain name")
        name = node.target.id
        self._check_name(node, name)
        if any(field.name == name for field in before):
            self._refuse(node, f"the field {name!r} is there twice")
        self._fields += 1
        if self._fields > MAX_FIELDS:
            self._refuse(node, f"there are more than {MAX_FIELDS} fields")
        if node.value is not None and not _is_plain(node.value):
            self._refuse(node.value, "a default must be a plain value; nothing is run")
        doc = ""
        match following:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                doc = self._doc(node, text)
        above, beside = self._text.guidance_above(node), self._text.guidance_beside(node)
        doc = "\n".join(part for part in (*above, doc, *beside) if part)
        of = self._type(node.annotation, 0)
        self._check_measure(node, of)
        return Field(name=name, type=of, doc=doc)

    def _alias(self, node: ast.Assign) -> None:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            self._refuse(node, "an alias is one name for one type")
        name = node.targets[0].id
        scope = self._scopes[-1]
        scope.later.pop(name, None)
        if name in scope.known:
            self._refuse(node, f"{name!r} is defined twice")
        of = self._type(node.value, 0)
        self._check_measure(node, of)
        scope.known[name] = of

    def _type(self, node: ast.expr, depth: int) -> Type:
        if depth > _MAX_BRACKETS:
            self._refuse(node, f"a type is nested deeper than {MAX_NESTING} levels")
        match node:
            case ast.Constant(value=str() as quoted):
                return self._quoted(node, quoted, depth)
            case ast.Name() | ast.Attribute():
                return self._named(node, depth)
            case ast.BinOp(op=ast.BitOr()):
                return self._union(node, list(_alternatives(node)), depth)
            case ast.Subscript():
                return self._subscript(node, depth)
        self._refuse(node, "this is no type that a schema knows")

    def _quoted(self, node: ast.Constant, quoted: str, depth: int) -> Type:
        try:
            tree = parse_python(quoted.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.Module(body=[], type_ignores=[])
        match tree.body:
            case [ast.Expr(value=inner)]:
                pass
            case _:
                self._refuse(node, "this is no type that a schema knows")
        for part in ast.walk(inner):
            ast.copy_location(part, node)
        return self._type(inner, depth + 1)

    def _named(self, node: ast.Name | ast.Attribute, depth: int) -> Type:
        name = (_dotted(node) or "").rpartition(".")[2]
        if isinstance(node, ast.Name):
            of = self._defined(node, name, depth)
            if of is not None:
                if isinstance(of, RecordType):
                    self._used.add(of.name)
                return of
        if name in _SCALARS:
            return _SCALARS[name]
        if name in _LISTS | _DICTS | _TUPLES:
            self._refuse(node, f"say what {name} holds, for example {_EXAMPLES[name.lower()]}")
        self._refuse(node, f"{name or 'this'} is no type that a schema knows")

    def _defined(self, node: ast.Name, name: str, depth: int) -> Type | None:
        for scope in reversed(self._scopes):
            if name in scope.known:
                return scope.known[name]
        if name in self._open:
            why = f"{name} contains itself"
            if len(self._scopes) > 2 and name == self._open[-1]:
                around = self._open[-2]
                why += f"; a field of {around} is indented like the classes in {around}"
            self._refuse(node, why)
        return None if name in _SCALARS else self._look_ahead(node, name, depth)

    def _subscript(self, node: ast.Subscript, depth: int) -> Type:
        name = (_dotted(node.value) or "").rpartition(".")[2]
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in _LISTS and len(arguments) == 1:
            return ListType(item=self._type(arguments[0], depth + 1))
        if name in _DICTS and len(arguments) == 2:
            if self._type(arguments[0], depth + 1) is not Scalar.STR:
                self._refuse(arguments[0], "the keys of a dict are str")
            return DictType(value=self._type(arguments[1], depth + 1))
        if name in _TUPLES and arguments:
            return self._tuple(arguments, depth)
        if name in _QUALIFIERS and len(arguments) == 1:
            return self._type(arguments[0], depth + 1)
        if name == "Optional" and len(arguments) == 1:
            return optional(self._type(arguments[0], depth + 1))
        if name == "Union":
            return self._union(node, arguments, depth)
        if name == "Literal" and arguments:
            return self._literal(node, arguments)
        self._refuse(node, f"{name or 'this'} is no type that a schema knows, used like this")

    def _tuple(self, arguments: list[ast.expr], depth: int) -> Type:
        match arguments:
            case [item, ast.Constant(value=value)] if value is ...:
                # Any number of one type is what a list is.
                return ListType(item=self._type(item, depth + 1))
        return TupleType(items=tuple(self._type(item, depth + 1) for item in arguments))

    def _union(self, node: ast.expr, alternatives: list[ast.expr], depth: int) -> Type:
        types = [
            self._type(one, depth + 1)
            for one in alternatives
            if not (isinstance(one, ast.Constant) and one.value is None)
        ]
        if len(types) != 1 or len(types) == len(alternatives):
            self._refuse(node, "only a type or None can be joined with |")
        return optional(types[0])

    def _literal(self, node: ast.Subscript, arguments: list[ast.expr]) -> Type:
        values: list[str | int | bool] = []
        null = False
        for argument in arguments:
            match argument:
                case ast.Constant(value=None):
                    null = True
                case ast.Constant(value=bool() | int() | str() as value):
                    self._check_literal(argument, value)
                    values.append(value)
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
                    self._check_literal(argument, value)
                    values.append(-value)
                case _:
                    self._refuse(argument, "a Literal holds strings, whole numbers and bools")
        if not values:
            self._refuse(node, "a Literal holds at least one value")
        one = literal(values)
        return optional(one) if null else one

    def _check_literal(self, node: ast.expr, value: str | int) -> None:
        try:
            checked_literal(value)
        except ValueError as error:
            self._refuse(node, str(error))

    def _doc(self, node: ast.stmt, text: str) -> str:
        try:
            # Returns written as escapes are line ends when what is shown is read again.
            lines = check_text(text).replace("\r\n", "\n").replace("\r", "\n")
            return normal_doc(inspect.cleandoc(lines))
        except ValueError as error:
            self._refuse(node, f"its docstring holds {error}")

    def _check_name(self, node: ast.stmt, name: str) -> None:
        if len(name) > MAX_KEY_CHARACTERS:
            self._refuse(node, f"a name has at most {MAX_KEY_CHARACTERS} characters")

    def _check_measure(self, node: ast.stmt, of: Type) -> None:
        excess = self._measures.excess(of)
        if excess:
            self._refuse(node, excess)

    def _refuse(self, node: ast.stmt | ast.expr, why: str) -> NoReturn:
        line, column = self._text.place(node)
        raise SchemaInvalid(why, line=line, column=column)


_EXAMPLES = {"list": "list[str]", "dict": "dict[str, str]", "tuple": "tuple[str, str]"}


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = _dotted(value)
            return None if before is None else f"{before}.{attribute}"
    return None


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    else:
        yield node


def _is_plain(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
