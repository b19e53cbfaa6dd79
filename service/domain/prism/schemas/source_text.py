"""The text of class source: its syntax tree, its lines and its comments."""

import ast
import copy
import io
import itertools
import re
import textwrap
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.prism.schemas.limits import MAX_SOURCE_BYTES, bounded
from service.domain.values.errors import SchemaInvalid
from service.domain.values.json_values import check_text

#: Levels of a syntax tree. Python's own limit depends on the room left on the stack; far
#: below it, what one process can read another can read as well.
_MAX_TREE_DEPTH = 100

#: Comments that speak to tools.
_TO_TOOLS = re.compile(
    r"[#\s]*(pylint|mypy|pyright|ruff|flake8|isort|fmt|pragma|type:\s*ignore|noqa)\b"
)
#: A line that is a decorator, and one that begins a class. Blanks are never given back: two
#: runs of them side by side would take quadratic time.
_DECORATOR = re.compile(r"\s*+@[\w.]++\s*+(\(.*\))?\s*+(#.*)?")
_CLASS = re.compile(r"(\s*)class\s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """One comment."""

    #: Where it begins, from 0, in characters.
    column: int
    #: Without its sign; empty if it speaks to tools.
    text: str
    #: Nothing stands before it on its line.
    alone: bool
    #: It goes on with one at the end of a line above, whose column it stands in.
    goes_on: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceText:
    """A source that Python can read."""

    tree: ast.Module
    lines: tuple[str, ...]
    #: Blanks that every line of the source began with.
    margin: int
    #: By line, from 1.
    comments: Mapping[int, Comment]

    def place(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Returns line and column of a node in the source as it was written, from 1."""
        # `ast` counts columns in bytes.
        before = self.lines[node.lineno - 1].encode()[: node.col_offset].decode()
        return node.lineno, self.margin + len(before) + 1

    def guidance_above(self, node: ast.stmt) -> list[str]:
        """Returns the comment that stands on the lines directly above a statement."""
        number = node.lineno - 1
        while self._is_above(number, node.col_offset):
            number -= 1
        return self._texts(number + 1, node.lineno - 1)

    def guidance_beside(self, node: ast.stmt) -> list[str]:
        """Returns the comments on a statement's lines, and what goes on with them below."""
        last = node.end_lineno or node.lineno
        after = self.lines[last - 1].encode()[node.end_col_offset :].lstrip(b" ;")
        if after and not after.startswith(b"#"):
            # What stands at the end of the line belongs to another statement.
            return self._texts(node.lineno, last - 1)
        while last + 1 in self.comments and self.comments[last + 1].goes_on:
            last += 1
        return self._texts(node.lineno, last)

    def _is_above(self, number: int, column: int) -> bool:
        comment = self.comments.get(number)
        if comment is None or not comment.alone or comment.goes_on:
            return False
        return comment.column == column

    def _texts(self, first: int, last: int) -> list[str]:
        comments = [self.comments[line] for line in range(first, last + 1) if line in self.comments]
        return [comment.text for comment in comments if comment.text]


def read_text(source: str) -> SourceText:
    """Reads a source. Raises SchemaInvalid.

    Lines and columns count from 1, in characters of the source with its tabs written as
    blanks.
    """
    try:
        check_text(bounded(source, MAX_SOURCE_BYTES))
    except ValueError as error:
        raise SchemaInvalid(f"the source holds {error}", line=1, column=1) from error
    written = source.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    source = textwrap.dedent(written)
    margin = len(_first_line(written)) - len(_first_line(source))
    source, tree = _tree(source, margin)
    return SourceText(
        tree=tree,
        lines=tuple(source.split("\n")),
        margin=margin,
        comments=_comments(source),
    )


def parse_python(source: str) -> ast.Module:
    """Returns the syntax tree of Python source.

    Raises what `ast.parse` raises: SyntaxError, and for source that is nested too deeply
    ValueError, RecursionError or MemoryError.
    """
    with warnings.catch_warnings():
        # An escape that Python does not know is no reason to write to the log.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_TREE_DEPTH):
        level = [child for node in level for child in _children(node)]
    if level:
        raise ValueError("nested too deeply")
    return tree


def _children(node: ast.AST) -> list[ast.AST]:
    """Does what `ast.iter_child_nodes` does in half its time, without contexts of names."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST) and name != "ctx":
            found.append(value)
    return found


def _tree(source: str, margin: int) -> tuple[str, ast.Module]:
    try:
        return source, _checked_tree(source, margin)
    except SchemaInvalid:
        # The paper's listing 4 indents a class deeper than its decorator. Decorators mean
        # nothing here, so their indentation cannot either.
        aligned = _with_decorators_aligned(source)
        if aligned == source:
            raise
    return aligned, _checked_tree(aligned, margin)


def _checked_tree(source: str, margin: int) -> ast.Module:
    try:
        return parse_python(source)
    except SyntaxError as error:
        raise SchemaInvalid(
            f"this is no Python class: {error.msg}",
            line=max(error.lineno or 1, 1),
            column=max(error.offset or 1, 1) + margin,
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SchemaInvalid("this is nested too deeply to be read", line=1, column=1) from error


def _with_decorators_aligned(source: str) -> str:
    """Returns the source with each decorator indented like the class below it."""
    lines = source.split("\n")
    indentation: str | None = None
    for number in range(len(lines) - 1, -1, -1):
        begins = _CLASS.match(lines[number])
        if begins:
            indentation = begins[1]
        elif indentation is not None and _DECORATOR.fullmatch(lines[number]):
            lines[number] = indentation + lines[number].lstrip()
        else:
            indentation = None
    return "\n".join(lines)


def regrouped(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    """Returns a module's statements, a class that was flattened put back into the one above it.

    The paper's listings 2 and 3, as they are printed: a class that has nothing but its
    docstring, and below it a class whose last fields are made of itself. Neither can be
    meant like that, and there is one way in which both can.
    """
    for number, (outer, inner) in enumerate(itertools.pairwise(body)):
        if not isinstance(outer, ast.ClassDef) or not isinstance(inner, ast.ClassDef):
            continue
        if not all(map(_is_text, outer.body)):
            continue
        own = [statement for statement in inner.body if isinstance(statement, ast.AnnAssign)]
        first = next((field for field in own if _names(field.annotation, inner.name)), None)
        if first is None or first is own[0]:
            continue
        at = inner.body.index(first)
        nested, around = copy.copy(inner), copy.copy(outer)
        nested.body = inner.body[:at]
        around.body = [*outer.body, nested, *inner.body[at:]]
        return [*body[:number], around, *body[number + 2 :]]
    return body


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _names(annotation: ast.expr, name: str) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in ast.walk(annotation)
    )


def _first_line(source: str) -> str:
    return next((line for line in source.split("\n") if line.strip()), "")


def _comments(source: str) -> dict[int, Comment]:
    comments: dict[int, Comment] = {}
    if "#" not in source:
        # Finding the tokens takes as long as all the rest.
        return comments
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                text = token.string.lstrip("#").strip()
                alone = not token.line[:column].strip()
                comments[line] = Comment(
                    column=column,
                    text="" if _TO_TOOLS.match(text) else text,
                    alone=alone,
                    goes_on=alone and _leads_on(comments.get(line - 1), column),
                )
    except (tokenize.TokenError, SyntaxError):
        # Python reads the source, or has said what is wrong with it; comments are extra.
        pass
    return comments


def _leads_on(above: Comment | None, column: int) -> bool:
    if above is None or above.column != column:
        return False
    return above.goes_on or not above.alone
