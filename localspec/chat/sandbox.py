"""Jinja's sandbox as Hugging Face sets it up for chat templates, which come with model files.

It gives them no files and no private attributes. Their source and output are bounded, their time and memory are not: a
template that hangs ends with the process.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.errors import BadTemplate

_T = TypeVar("_T")
_LARGEST_SOURCE = 1_000_000  # characters
_LARGEST_OUTPUT = 64_000_000  # characters: more than any context holds
_LONGEST_LIST = 100_000  # that a template makes
_LONGEST_COMPLAINT = 300  # characters
_HINT = "check the order of the messages, or use a model file with another template; --raw needs none"


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment for chat templates."""

    def __init__(self) -> None:
        extensions = ("jinja2.ext.loopcontrols", _Generation)
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        # One moment for all renders, so that a conversation's prompt keeps its beginning over midnight.
        self.now = datetime.now()
        self.filters["tojson"] = _tojson
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": self.now.strftime}

    def read(self, source: str) -> tuple[Template, frozenset[str], frozenset[str]]:
        """The template, the variables that it mentions, and the texts written in it. Raises BadTemplate."""
        if len(source) > _LARGEST_SOURCE:
            raise BadTemplate(f"the chat template has {len(source):,} characters", hint=_HINT)
        tree = _guarded(lambda: self.parse(source))
        names = frozenset(node.name for node in tree.find_all(nodes.Name))
        texts = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
        return _guarded(lambda: self.from_string(source)), names, texts

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """Templates may change lists that they made themselves: Kimi K2's collects messages in one."""
        if attr in ("append", "pop") and type(obj) is list:
            return len(obj) < _LONGEST_LIST
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """End a search loop at its first hit: its whole body is `{% if not ns.found %}...{% endif %}`.

        Gemma 4's template searches all messages for each message, in quadratic time.
        """
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            own = {"loop", *(node.name for node in loop.find_all(nodes.Name) if node.ctx == "store")}
            leave: list[nodes.Node] = [nodes.Break(lineno=loop.lineno)]
            match loop.body:
                case [
                    nodes.If(
                        test=nodes.Not(node=nodes.Getattr(node=nodes.Name(name=found))), elif_=[], else_=[]
                    ) as only
                ] if found not in own:
                    only.else_ = leave
                case [nodes.If(test=nodes.Getattr(node=nodes.Name(name=found)), body=[]) as only] if (
                    found not in own
                ):
                    only.body = leave
        return tree


class _Given(list[Any]):
    """A list that no template can change."""


def unchangeable(value: Any) -> Any:  # noqa: ANN401  JSON
    """The value with lists that no template can change."""
    if isinstance(value, Mapping):
        return {key: unchangeable(part) for key, part in value.items()}
    return _Given(map(unchangeable, value)) if isinstance(value, list | tuple) else value


class _Generation(Extension):
    """{% generation %} marks the assistant's text for training; here its body is just rendered."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja only reads it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, ensure_ascii: bool = False, **how: Any) -> str:  # noqa: ANN401  json's own options
    """JSON as Hugging Face writes it: no HTML escapes, no ASCII escapes; what a filter has left is a list."""
    return json.dumps(list(value) if isinstance(value, Iterator) else value, ensure_ascii=ensure_ascii, **how)


def _raise_exception(message: object) -> NoReturn:
    raise BadTemplate(f"the model's chat template refuses these messages: {_cut(str(message))}", hint=_HINT)


def rendered(template: Template, variables: Mapping[str, Any]) -> str:
    """The text that a template makes of its variables. Raises BadTemplate."""

    def written() -> str:
        parts, size = [], 0
        for piece in template.generate(variables):
            parts.append(piece)
            size += len(piece)
            if size > _LARGEST_OUTPUT:
                raise SecurityError(f"it writes more than {_LARGEST_OUTPUT:,} characters")
        return "".join(parts)

    return _guarded(written)


def _guarded(work: Callable[[], _T]) -> _T:
    """Run a template's code; every error in it becomes BadTemplate."""
    try:
        return work()
    except BadTemplate:
        raise
    except Exception as error:
        match error:
            case SecurityError():
                trouble = "was stopped"
            case RecursionError():
                trouble = "never ends"
            case TemplateSyntaxError():
                trouble = f"has a mistake in line {error.lineno}"
            case _:
                trouble = "failed"
        said = _cut(str(getattr(error, "message", "") or error) or type(error).__name__)
        raise BadTemplate(f"the model's chat template {trouble}: {said}", hint=_HINT) from error


def _cut(said: str) -> str:
    """The message, cut to one sentence: it may quote a value of the template."""
    return said if len(said) <= _LONGEST_COMPLAINT else f"{said[:_LONGEST_COMPLAINT]} ..."
