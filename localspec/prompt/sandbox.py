"""The Jinja sandbox in which the chat templates of model files run, set up as Hugging Face does.

Templates see no files and no private attributes. Their source and output are limited, but not their time and memory.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localspec.errors import BadTemplate

_LARGEST_OUTPUT = 64_000_000  # characters; no context has room for more
_LONGEST_COMPLAINT = 300  # characters of an error message
_PRESENCE = ("defined", "undefined", "none", "default", "d")  # Jinja's tests whether a variable is given
_HINT = "check the order of the messages, use another model file, or leave the template out with --raw"


class Sandbox(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        extensions = ("jinja2.ext.loopcontrols", _Generation)
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        # Give all prompts the date of the load, so that a new day does not change how they begin.
        now = self.now = datetime.now()
        self.filters["tojson"] = _tojson
        dates = {
            "date_string": f"{now:%d %b %Y}",
            "datetime": f"{now:%b %d %Y}",
            "strftime_now": now.strftime,
        }
        self.globals |= {"raise_exception": _raise_exception, **dates}

    def read(self, source: str) -> tuple[Template, frozenset[str], frozenset[str], frozenset[str]]:
        """Return the template, its variables, its literals, and the variables that it tests. Raises BadTemplate."""
        if len(source) > 1_000_000:
            what = f"the chat template has {len(source):,} characters, more than 1,000,000"
            raise BadTemplate(what, hint="use another model file, or leave the template out with --raw")
        with _checked():
            tree, template = self.parse(source), self.from_string(source)
        names = frozenset(node.name for node in tree.find_all(nodes.Name))
        texts = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
        tests = [node for node in tree.find_all((nodes.Test, nodes.Filter)) if node.name in _PRESENCE]
        tested = frozenset(node.node.name for node in tests if isinstance(node.node, nodes.Name))
        return template, names, texts, tested

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        """Let templates change lists that they have made themselves, as Kimi K2's template does."""
        if attr in ("append", "pop") and type(obj) is list:
            return len(obj) < 100_000
        return super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """End a searching loop at its first hit, because Gemma 4's template searches all messages for each message.

        {% for m in messages %}                    {% for m in messages %}
          {% if not ns.found %}...{% endif %}  ->    {% if not ns.found %}...{% else %}{% break %}{% endif %}
        {% endfor %}                               {% endfor %}

        A loop with other statements, or one that assigns `ns`, stays. `{% if ns.found %}{% else %}` also changes.
        """
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            own = {"loop", *(node.name for node in loop.find_all(nodes.Name) if node.ctx == "store")}
            match loop.body:
                case [nodes.If(test=nodes.Not(node=nodes.Getattr() as flag), elif_=[], else_=[]) as only]:
                    branch = "else_"
                case [nodes.If(test=nodes.Getattr() as flag, body=[]) as only]:
                    branch = "body"
                case _:
                    continue
            if isinstance(flag.node, nodes.Name) and flag.node.name not in own:
                setattr(only, branch, [nodes.Break(lineno=loop.lineno)])
        return tree


class _Given(list[Any]):
    """A list that no template can change."""


def unchangeable(value: Any) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, Mapping):
        return {key: unchangeable(part) for key, part in value.items()}
    return _Given(map(unchangeable, value)) if isinstance(value, list | tuple) else value


class _Generation(Extension):
    """Render the body of {% generation %}, which marks the assistant's text for training."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja only reads it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, ensure_ascii: bool = False, **how: Any) -> str:  # noqa: ANN401  json's own options
    """Write JSON as Hugging Face does, without HTML and ASCII escapes; an iterator (from a filter) becomes a list."""
    return json.dumps(list(value) if isinstance(value, Iterator) else value, ensure_ascii=ensure_ascii, **how)


def _raise_exception(message: object) -> NoReturn:
    raise BadTemplate(f"the model's chat template refuses these messages: {_cut(str(message))}", hint=_HINT)


def rendered(template: Template, variables: Mapping[str, Any]) -> str:
    with _checked():
        parts, size = [], 0
        for piece in template.generate(variables):
            parts.append(piece)
            size += len(piece)
            if size > _LARGEST_OUTPUT:
                raise SecurityError(f"the prompt would have more than {_LARGEST_OUTPUT:,} characters")
    return "".join(parts)


@contextmanager
def _checked() -> Iterator[None]:
    """Raise BadTemplate for every error in a template's code."""
    try:
        yield
    except BadTemplate:
        raise
    except Exception as error:
        match error:
            case SecurityError():
                trouble = "was stopped"
            case RecursionError():
                trouble = "never ends"
            case TemplateSyntaxError():
                trouble = f"has a syntax error in line {error.lineno}"
            case _:
                trouble = "failed"
        reason = _cut(str(getattr(error, "message", "") or error) or type(error).__name__)
        raise BadTemplate(f"the model's chat template {trouble}: {reason}", hint=_HINT) from error


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_COMPLAINT else f"{text[:_LONGEST_COMPLAINT]} ..."
