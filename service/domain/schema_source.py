"""Schemas as Python class source, as in the PRISM paper's listings 1 to 6.

The source is parsed with `ast` and never run. What a schema cannot hold is refused
with its line and column.
"""

import ast
import inspect
import io
import textwrap
import tokenize
import warnings
from collections.abc import Iterator
from typing import NoReturn

from service.domain.errors import SchemaInvalid
from service.domain.json_values import check_text
from service.domain.paths import MAX_KEY_CHARACTERS
from service.domain.schema import (
    BoolType,
    DictType,
    Field,
    FloatType,
    IntType,
    ListType,
    RecordType,
    Schema,
    StrType,
    TupleType,
    Type,
    render,
)
from service.domain.schema_limits import (
    MAX_FIELDS,
    MAX_NESTING,
    MAX_SHOWN_BYTES,
    MAX_SOURCE_BYTES,
    Measures,
    checked_literal,
    literal,
    normal_doc,
    optional,
)

_SCALARS: dict[str, Type] = {
    "str": StrType(),
    "int": IntType(),
    "float": FloatType(),
    "bool": BoolType(),
}
_LISTS = {"list", "List"}
_DICTS = {"dict", "Dict"}
_TUPLES = {"tuple", "Tuple"}


def parse_source(source: str) -> Schema:
    """The schema that `source` writes down. Raises SchemaInvalid.

    The memory's record is the one top-level class that no other one uses; when several
    are left over, the last of them. Lines and columns of a refusal count from 1, in
    characters of the source with its tabs written as blanks.
    """
    try:
        check_text(source)
    except ValueError as error:
        raise SchemaInvalid(f"the source holds {error}", line=1, column=1) from error
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise SchemaInvalid(f"the source has more than {MAX_SOURCE_BYTES} bytes", line=1, column=1)
    written = source.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    source = textwrap.dedent(written)
    margin = len(_first_line(written)) - len(_first_line(source))
    try:
        schema = _Reader(source, margin).read(_tree(source, margin))
    except RecursionError as error:
        raise SchemaInvalid("this is nested too deeply to be read", line=1, column=1) from error
    if len(render(schema).encode()) > MAX_SHOWN_BYTES:
        why = f"written out, the schema has more than {MAX_SHOWN_BYTES} bytes"
        raise SchemaInvalid(why, line=1, column=1)
    return schema


def _tree(source: str, margin: int) -> ast.Module:
    try:
        return _parse(source)
    except SyntaxError as error:
        raise SchemaInvalid(
            f"this is no Python class: {error.msg}",
            line=max(error.lineno or 1, 1),
            column=max(error.offset or 1, 1) + margin,
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SchemaInvalid("this is nested too deeply to be read", line=1, column=1) from error


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        # An escape that Python does not know is no reason to write to the log.
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _first_line(source: str) -> str:
    return next((line for line in source.split("\n") if line.strip()), "")


class _Reader:
    """Reads one source."""

    def __init__(self, source: str, margin: int) -> None:
        self._lines = source.split("\n")
        #: Blanks that every line of the source began with.
        self._margin = margin
        self._comments = dict(_comments(source))
        self._fields = 0
        #: Names that a class can use: classes and aliases, innermost scope last.
        self._scopes: list[dict[str, Type]] = []
        #: Classes being read, from the outermost.
        self._open: list[str] = []
        self._records: set[str] = set()
        self._used: set[str] = set()
        self._measures = Measures()

    def read(self, tree: ast.Module) -> Schema:
        """The schema of a module."""
        self._scopes.append({})
        roots: list[RecordType] = []
        for statement in tree.body:
            match statement:
                case ast.ClassDef():
                    roots.append(self._class(statement))
                case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                    pass
                case ast.Assign():
                    self._alias(statement)
                case ast.Import() | ast.ImportFrom():
                    self._refuse(statement, "a schema needs no imports")
                case _:
                    self._refuse(statement, "a schema holds classes only")
        free = [root for root in roots if root.name not in self._used]
        if not free:
            raise SchemaInvalid("there is no class", line=1, column=1)
        return Schema(root=free[-1])

    def _class(self, node: ast.ClassDef) -> RecordType:
        if len(self._open) >= MAX_NESTING:
            self._refuse(node, f"classes are nested deeper than {MAX_NESTING} levels")
        # One name for one record: the model is shown them side by side.
        if node.name in self._records or node.name in self._scopes[-1]:
            self._refuse(node, f"{node.name!r} is defined twice")
        self._check_name(node, node.name)
        self._records.add(node.name)
        for decorator in node.decorator_list:
            self._check_decorator(decorator)
        for base in node.bases:
            if not _dotted(base):
                self._refuse(base, "a base class must be a name")
        if node.keywords:
            self._refuse(node, "a class takes no keywords")
        self._open.append(node.name)
        self._scopes.append({})
        fields = self._body(node)
        self._scopes.pop()
        self._open.pop()
        if not fields:
            self._refuse(node, f"{node.name} has no fields")
        doc = self._doc(node, ast.get_docstring(node, clean=False) or "")
        record = RecordType(name=node.name, fields=tuple(fields), doc=doc)
        self._check_measure(node, record)
        self._scopes[-1][node.name] = record
        return record

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
                case ast.ClassDef():
                    self._class(statement)
                case ast.AnnAssign():
                    following = node.body[number + 1] if number + 1 < len(node.body) else None
                    fields.append(self._field(statement, following, fields))
                case ast.Assign():
                    self._alias(statement)
                case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
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
        comment = self._comments.get(node.end_lineno or node.lineno, "")
        return Field(
            name=name,
            type=self._type(node.annotation, 0),
            doc="\n".join(part for part in (doc, comment) if part),
        )

    def _alias(self, node: ast.Assign) -> None:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            self._refuse(node, "an alias is one name for one type")
        name = node.targets[0].id
        if name in self._scopes[-1]:
            self._refuse(node, f"{name!r} is defined twice")
        of = self._type(node.value, 0)
        self._check_measure(node, of)
        self._scopes[-1][name] = of

    def _type(self, node: ast.expr, depth: int) -> Type:
        if depth > MAX_NESTING:
            self._refuse(node, f"a type is nested deeper than {MAX_NESTING} levels")
        match node:
            case ast.Constant(value=str() as quoted):
                return self._quoted(node, quoted, depth)
            case ast.Name() | ast.Attribute():
                return self._named(node)
            case ast.BinOp(op=ast.BitOr()):
                return self._union(node, list(_alternatives(node)), depth)
            case ast.Subscript():
                return self._subscript(node, depth)
        self._refuse(node, "this is no type that a schema knows")

    def _quoted(self, node: ast.Constant, quoted: str, depth: int) -> Type:
        try:
            tree = _parse(quoted.strip())
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

    def _named(self, node: ast.Name | ast.Attribute) -> Type:
        name = (_dotted(node) or "").rpartition(".")[2]
        if isinstance(node, ast.Name):
            for scope in reversed(self._scopes):
                if name in scope:
                    of = scope[name]
                    if isinstance(of, RecordType):
                        self._used.add(of.name)
                    return of
            if name in self._open:
                self._refuse(node, f"{name} contains itself")
        if name in _SCALARS:
            return _SCALARS[name]
        if name in _LISTS | _DICTS | _TUPLES:
            self._refuse(node, f"say what {name} holds, for example {_EXAMPLES[name.lower()]}")
        self._refuse(node, f"{name or 'this'} is no type that a schema knows")

    def _subscript(self, node: ast.Subscript, depth: int) -> Type:
        name = (_dotted(node.value) or "").rpartition(".")[2]
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in _LISTS and len(arguments) == 1:
            return ListType(item=self._type(arguments[0], depth + 1))
        if name in _DICTS and len(arguments) == 2:
            if not isinstance(self._type(arguments[0], depth + 1), StrType):
                self._refuse(arguments[0], "the keys of a dict are str")
            return DictType(value=self._type(arguments[1], depth + 1))
        if name in _TUPLES and arguments:
            return self._tuple(arguments, depth)
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
        # `ast` counts columns in bytes.
        before = self._lines[node.lineno - 1].encode()[: node.col_offset].decode()
        raise SchemaInvalid(why, line=node.lineno, column=self._margin + len(before) + 1)


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


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments at the end of a line, by line; they are guidance like docstrings."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
                text = token.string.lstrip("#").strip()
                if not text.startswith(("pylint:", "# pylint:", "noqa", "type:")):
                    yield token.start[0], text
    except (tokenize.TokenError, SyntaxError):
        # `ast` says what is wrong, with more words.
        return
