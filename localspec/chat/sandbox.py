"""Jinja for untrusted templates: no files, no way out through attributes, one bound around whatever they call."""

import json
from collections.abc import Callable, MappingView
from datetime import datetime
from functools import wraps
from string import Formatter, whitespace
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_indent, do_join
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from localspec.chat.allowance import (
    METHODS,
    REFUSED_FILTERS,
    SHALLOW_FILTERS,
    SHALLOW_TESTS,
    SLOW_TO_SEARCH,
    SPLITTING,
    WHOLE_FILTERS,
    Allowance,
    length,
    weight,
)

_PER_PIECE = 16  # characters that a piece of a text weighs beside its own
_LARGEST_POWER = 64
_LARGEST_INDENT = 16
_LARGEST_PRECISION = 30  # digits
_LONGEST_PATTERN = 1000  # characters to strip, or to search for from the end: the time is this times the text
_LONGEST_DATE_FORMAT = 40
_COMPARABLE, _MADE = "a value to compare", "a value made"  # filters that no template can write


class TemplateRefusalError(TemplateError):
    """The template itself called raise_exception: it does not accept the messages."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates, with bounds; one render at a time.

    Every filter, method and operator passes through `Allowance`. Loops and macros call `spend` at the start of every
    iteration, `~` is `joined`, slices and comparisons pass a filter: `_parse` writes that into templates.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        extensions = ("jinja2.ext.loopcontrols", _Generation)
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._written)
        self._allowance = Allowance()
        for name in REFUSED_FILTERS:
            del self.filters[name]
        self.filters |= {
            "indent": self._indent,
            "join": self._join,
            "replace": lambda value, *rest, **named: self._replace(str(value), *rest, **named),
            "round": self._rounded(self.filters["round"]),
            "string": self._string,
            "tojson": self._tojson,
        }
        self.filters = {name: self._bounded(name, work) for name, work in self.filters.items()}
        self.filters |= {_COMPARABLE: self._comparable, _MADE: self._allowance.made}
        for name in self.tests.keys() - SHALLOW_TESTS:
            self.tests[name] = self._looked_at(self.tests[name])  # type: ignore[arg-type]
        # One moment for all renders, so that a conversation's prompt keeps its beginning over midnight.
        self.now = datetime.now()
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "cycler", "joiner", "namespace")
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    def start(self, messages: int = 0) -> None:
        """A fresh allowance; to be called before every render, with the number of messages that it is given."""
        self._allowance.start(messages)

    def spend(self, written: int) -> None:
        """One step of a loop or a macro whose literal text has `written` characters."""
        self._allowance.step()
        self._allowance.write(written)

    def joined(self, *parts: object) -> object:
        """What `~` means."""
        self._allowance.check_size(sum(map(weight, parts)))
        return self._allowance.made("".join(map(str, parts)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        self._allowance.check_time()
        if operator == "+":
            self._allowance.check_size(length(left) + length(right))
        elif operator == "*":
            self._allowance.check_size(_product(left, right))
        elif operator == "**" and max(abs(left), abs(right)) > _LARGEST_POWER:
            raise SecurityError("it computes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("it formats text with %, where ~ would do")
        return self._allowance.made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if owner is self:
            return super().call(context, obj, *args, **kwargs)
        self._allowance.check_time()
        if isinstance(owner, str) and name == "replace":
            return self._replace(owner, *args)
        if isinstance(owner, str) and name == "join":
            return self._join(args[0], owner)
        if isinstance(owner, str):
            self._check_method(owner, name, args)
        elif not isinstance(obj, Macro):  # dict.get hashes, list.index and loop.changed compare
            self._allowance.check_size(weight((owner if isinstance(owner, list | tuple) else None, args)))
        return self._allowance.made(super().call(context, obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        for kind, allowed in METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed
        of_jinja = type(obj).__module__.startswith("jinja2.")  # loop, namespace, macros, undefined values
        return of_jinja and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def bounded(*args: object, **kwargs: object) -> str:
            if any(width for _, _, width, _ in Formatter().parse(pattern)):
                raise SecurityError("it formats text with a width")
            self._allowance.check_size(len(pattern) * (1 + weight((args, kwargs))))
            return wrapped(*args, **kwargs)

        return bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            _leave_early(loop)
        repeating: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
        ]
        for repeated in repeating:
            literal = sum(len(text.data) for text in repeated.find_all(nodes.TemplateData))
            repeated.body.insert(0, nodes.ExprStmt(_own_call("spend", [nodes.Const(literal)], repeated)))
        _Watched().visit(tree)
        return tree

    def _bounded(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose input is looked at before it works, and whose result counts."""
        passed = 1 if hasattr(work, "jinja_pass_arg") else 0  # the context or the environment comes first

        @wraps(work)  # keeps the mark that says so
        def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._allowance.check_time()
            for value in (*args[passed:], *kwargs.values()):
                if isinstance(value, str) and name not in WHOLE_FILTERS:
                    self._allowance.check_parted(value)
                elif name not in SHALLOW_FILTERS:
                    self._allowance.check_size(weight(value))
            return self._allowance.made(work(*args, **kwargs))

        return bounded

    def _looked_at(self, test: Callable[..., bool]) -> Callable[..., bool]:
        return wraps(test)(lambda *values: test(*map(self._comparable, values)))

    def _comparable(self, value: object) -> object:
        """The value, looked at: comparing or hashing lists of lists may take as long as writing them."""
        if isinstance(value, list | tuple | dict | MappingView):
            self._allowance.check_time()
            self._allowance.check_size(weight(value))
        return value

    def _check_method(self, text: str, name: str, args: tuple[Any, ...]) -> None:
        if name in SPLITTING:
            self._allowance.check_size(len(text) + _PER_PIECE * _pieces(text, name, args))
        if name in SLOW_TO_SEARCH and any(length(arg) > _LONGEST_PATTERN for arg in args):
            raise SecurityError("it searches for a text that is too long")

    def _written(self, value: object) -> str:
        text = self._string(value)
        self._allowance.write(len(text))
        return text

    def _string(self, value: object) -> str:
        self._allowance.check_size(weight(value))
        text = str(value)
        self._allowance.check_size(len(text))
        return text

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Hugging Face writes it: no HTML escapes, no ASCII escapes."""
        if indent is not None:
            indent = min(int(indent), _LARGEST_INDENT)
        if weight(separators) > _LONGEST_PATTERN:
            raise SecurityError("it separates JSON with a text that is too long")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if indent is None and separators is None:
            return encoder.encode(value)
        chunks, size = [], 0
        for chunk in encoder.iterencode(value):
            size += len(chunk)
            self._allowance.check_size(size)
            chunks.append(chunk)
        return "".join(chunks)

    def _replace(self, text: str, old: object, new: object, count: int | None = -1) -> Any:  # noqa: ANN401
        old, new = str(old), str(new)
        found = text.count(old) if count is None or count < 0 else min(count, text.count(old))
        self._allowance.check_size(len(text) + found * len(new))
        return self._allowance.made(text.replace(old, new, found))

    def _join(self, values: Any, d: object = "", attribute: Any = None) -> Any:  # noqa: ANN401
        if isinstance(values, str):
            self._allowance.check_parted(values)
        items, separator = list(values), str(d)
        self._allowance.check_size(weight(items) + len(separator) * len(items))
        return self._allowance.made(str(do_join(nodes.EvalContext(self), items, separator, attribute)))

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        size = len(width) if isinstance(width, str) else width
        if size > _LARGEST_INDENT:
            raise SecurityError("it indents text too far")
        return do_indent(self._string(text), width, first, blank)

    @staticmethod
    def _rounded(work: Callable[..., float]) -> Callable[..., float]:
        def rounded(value: float, precision: int = 0, method: Any = "common") -> float:  # noqa: ANN401
            if abs(precision) > _LARGEST_PRECISION:
                raise SecurityError("it rounds to too many digits")
            return work(value, precision, method)

        return rounded

    def _strftime_now(self, form: str) -> str:
        # A number in a format is a width on some platforms.
        if len(form) > _LONGEST_DATE_FORMAT or any(c.isdigit() for c in form):
            raise SecurityError("its date format is not a plain one")
        return self.now.strftime(form)


def _pieces(text: str, name: str, args: tuple[Any, ...]) -> int:
    """At most how many pieces splitting makes, at no more cost than counting."""
    if name != "splitlines" and args and isinstance(args[0], str) and args[0]:
        found = text.count(args[0])
    else:  # blanks that are not ASCII end lines or part words as well
        found = sum(map(text.count, whitespace)) if text.isascii() else len(text)
    limit = args[1] if name != "splitlines" and len(args) > 1 and isinstance(args[1], int) else -1
    return 1 + (found if limit < 0 else min(found, limit))


def _product(left: object, right: object) -> int:
    """Length of a repeated text or list; 1 for numbers."""
    times = next((max(v, 0) for v in (left, right) if isinstance(v, int)), 1)
    lengths = [length(v) for v in (left, right) if isinstance(v, str | list | tuple)]
    return times * max(lengths) if lengths else 1


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusalError(str(message))


def _leave_early(loop: nodes.For) -> None:
    """End a loop where it has nothing left to do: its whole body is `{% if not ns.found %}...{% endif %}`.

    Templates search the messages so, anew for each message. Without this a render takes the square of their number.
    """
    if len(loop.body) != 1 or not isinstance(branch := loop.body[0], nodes.If) or loop.recursive:
        return
    targets = (loop.target, *loop.target.find_all(nodes.Name))
    changing = {"loop", *(target.name for target in targets if isinstance(target, nodes.Name))}
    if not _is_constant(branch.test, changing):
        return
    leaves: list[nodes.Node] = [nodes.Break(lineno=branch.lineno)]
    if not branch.body:
        branch.body = leaves
    elif not branch.elif_ and not branch.else_:
        branch.else_ = leaves


def _is_constant(test: nodes.Node, changing: set[str]) -> bool:
    """Whether a test stays as it is while the iterations do nothing."""
    match test:
        case nodes.Name():
            return test.name not in changing
        case nodes.Getattr() | nodes.Not():
            return _is_constant(test.node, changing)
        case nodes.And() | nodes.Or():
            return _is_constant(test.left, changing) and _is_constant(test.right, changing)
        case _:
            return False


def _own_call(name: str, arguments: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    """A call of one of the sandbox's methods, which no variable of the template can replace."""
    call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
    call.set_lineno(at.lineno)
    return call


def _own_filter(name: str, value: nodes.Expr) -> nodes.Expr:
    if isinstance(value, nodes.Const):
        return value
    watched = nodes.Filter(value, name, [], [], None, None)
    watched.set_lineno(value.lineno)
    return watched


class _Watched(NodeTransformer):
    """`a ~ b` becomes a call of Sandbox.joined; what is cut out, compared or hashed passes a filter."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  jinja's own name
        self.generic_visit(node)
        return _own_call("joined", node.nodes, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _own_filter(_MADE, node)
        node.arg = _own_filter(_COMPARABLE, node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _own_filter(_COMPARABLE, node.key)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _own_filter(_COMPARABLE, node.expr)
        for operand in node.ops:
            operand.expr = _own_filter(_COMPARABLE, operand.expr)
        return node


class _Generation(Extension):
    """{% generation %} marks for training what the assistant wrote; here its body is simply rendered."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja only reads it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
