"""Jinja for untrusted templates: no files, no way out through attributes, bounds on steps, time and size."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from string import Formatter
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_indent, do_join, do_map
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LARGEST_VALUE = 8_000_000  # characters of a text, items of a list: more than any context holds
LARGEST_OUTPUT = (
    64_000_000  # characters written by a render, text that only a macro or a block keeps included
)
MOST_STEPS = 300_000  # loop iterations and macro calls
MOST_SECONDS = 5.0
_PER_ITEM = 16  # what an item of a list weighs beside its own text
_LARGEST_POWER = 64
_LARGEST_INDENT = 16
_LONGEST_DATE_FORMAT = 40

# With these a short template can ask for gigabytes; no chat template needs them.
_REFUSED_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "format_map"})
_REFUSED_FILTERS = ("batch", "center", "format", "pprint", "slice", "sum", "urlize", "wordwrap", "xmlattr")


class TemplateRefusalError(TemplateError):
    """The template itself called raise_exception: it does not accept the messages."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates, with bounds; one render at a time.

    Templates call `spend` at the start of every loop iteration and macro, and `joined` for every `~`:
    `_parse` writes that into them.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions = ("jinja2.ext.loopcontrols", _Generation)
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._written)
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters.update(self._bounded_filters())
        # One moment for all renders, so that a conversation's prompt keeps its beginning over midnight.
        self.now = datetime.now()
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "cycler", "joiner", "namespace")
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.start()

    def start(self) -> None:
        """A fresh allowance; to be called before every render."""
        self._steps = 0
        self._output = 0
        self._deadline = time.monotonic() + MOST_SECONDS

    def spend(self, written: int) -> None:
        """One step of a loop or a macro whose literal text has `written` characters."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise SecurityError(f"it takes more than {MOST_STEPS:,} steps")
        self._add_output(written)
        self._check_time()

    def joined(self, *parts: object) -> str:
        """What `~` means."""
        self._check_size(sum(map(weight, parts)))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        self._check_time()
        if operator == "+":
            self._check_size(length(left) + length(right))
        elif operator == "*":
            self._check_size(_product(left, right))
        elif operator == "**" and max(abs(left), abs(right)) > _LARGEST_POWER:
            raise SecurityError("it computes a number that is too large")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("it formats text with %, where ~ would do")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            return self._replace(owner, *args)
        if isinstance(owner, str) and name == "join":
            return self._join(args[0], owner)
        return super().call(context, obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        refused = isinstance(obj, str) and attr in _REFUSED_METHODS
        return not refused and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def bounded(*args: object, **kwargs: object) -> str:
            if any(width for _, _, width, _ in Formatter().parse(pattern)):
                raise SecurityError("it formats text with a width")
            self._check_size(len(pattern) * (1 + weight((args, kwargs))))
            return wrapped(*args, **kwargs)

        return bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeating: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
            *tree.find_all(nodes.For),
            *tree.find_all(nodes.Macro),
            *tree.find_all(nodes.CallBlock),
        ]
        for repeated in repeating:
            literal = sum(len(text.data) for text in repeated.find_all(nodes.TemplateData))
            repeated.body.insert(0, nodes.ExprStmt(_own_call("spend", [nodes.Const(literal)], repeated)))
        _ConcatToCall().visit(tree)
        return tree

    def _bounded_filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "indent": self._indent,
            "join": lambda value, d="", attribute=None: self._join(value, d, attribute),
            "map": self._map,
            "replace": lambda value, old, new, count=-1: self._replace(str(value), str(old), str(new), count),
            "string": self._string,
            "tojson": self._tojson,
        }

    def _written(self, value: object) -> str:
        text = self._string(value)
        self._add_output(len(text))
        return text

    def _string(self, value: object) -> str:
        self._check_size(weight(value))
        text = str(value)
        self._check_size(len(text))
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
        self._check_size(weight(value))
        if indent is not None:
            indent = min(int(indent), _LARGEST_INDENT)
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        self._check_size(len(text))
        return text

    def _replace(self, text: str, old: str, new: str, count: int | None = -1) -> str:
        found = text.count(old) if count is None or count < 0 else min(count, text.count(old))
        self._check_size(len(text) + found * len(new))
        return text.replace(old, new, found)

    def _join(self, values: Any, separator: object = "", attribute: Any = None) -> str:  # noqa: ANN401
        items = list(values)
        self._check_size(weight(items) + len(str(separator)) * len(items))
        return str(do_join(nodes.EvalContext(self), items, str(separator), attribute))

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        size = len(width) if isinstance(width, str) else width
        if size > _LARGEST_INDENT:
            raise SecurityError("it indents text too far")
        return do_indent(self._string(text), width, first, blank)

    @pass_context
    def _map(self, context: Context, values: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        items = list(values)
        self._check_size(weight(items))
        return do_map(context, items, *args, **kwargs)

    def _strftime_now(self, form: str) -> str:
        # A number in a format is a width on some platforms.
        if len(form) > _LONGEST_DATE_FORMAT or any(c.isdigit() for c in form):
            raise SecurityError("its date format is not a plain one")
        return self.now.strftime(form)

    def _add_output(self, size: int) -> None:
        self._output += size
        if self._output > LARGEST_OUTPUT:
            raise SecurityError(f"it writes more than {LARGEST_OUTPUT:,} characters")

    def _check_size(self, size: int) -> None:
        if size > LARGEST_VALUE:
            raise SecurityError(f"it makes a value of more than {LARGEST_VALUE:,} characters or items")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes more than {MOST_SECONDS:g} seconds")


def length(value: object) -> int:
    """Characters of a text, items of a list, 1 for anything else."""
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def weight(value: object) -> int:
    """About how long a value is as text, counted no further than a little beyond LARGEST_VALUE."""
    total, pending = 0, [value]
    while pending and total <= LARGEST_VALUE:
        item = pending.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
            total += _PER_ITEM * len(item)
        elif isinstance(item, list | tuple):
            pending += item
            total += _PER_ITEM * len(item)
        else:
            total += 1
    return total


def _product(left: object, right: object) -> int:
    """Length of a repeated text or list; for numbers, their size in bits."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    times = next((max(v, 0) for v in (left, right) if isinstance(v, int)), 1)
    return times * max(length(left), length(right))


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusalError(str(message))


def _own_call(name: str, arguments: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    """A call of one of the sandbox's methods, which no variable of the template can replace."""
    call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
    call.set_lineno(at.lineno)
    return call


class _ConcatToCall(NodeTransformer):
    """`a ~ b` becomes a call of Sandbox.joined."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  jinja's own name
        self.generic_visit(node)
        return _own_call("joined", node.nodes, node)


class _Generation(Extension):
    """{% generation %} marks for training what the assistant wrote; here its body is simply rendered."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja only reads it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
