"""What the handlers of all interfaces share: the queue, the pairs, and questions to the engine."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from localspec.engine.messages import Detokenize, Render, Rendered, Report, Tokenize, Tokens
from localspec.serve.fields import Fields
from localspec.serve.http import Writer, is_background, respond, unless_gone
from localspec.serve.jobs import Jobs, Loaded
from localspec.serve.pairs import Chosen, Pairs
from localspec.serve.problems import failed
from localspec.serve.replies import Asked, Prompt
from localspec.serve.wishes import Wishes, take_wishes

R = TypeVar("R", bound=Report)


class Interface:
    """Handlers on one queue."""

    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        self._jobs = jobs
        self._pairs = pairs

    def _chosen(self, fields: Fields) -> Chosen:
        """What the model of a request means. Raises BadSetting, RequestFailed."""
        return self._pairs.choose(fields.take("model", str, ""))

    def _asked(
        self,
        fields: Fields,
        prompts: tuple[Prompt, ...],
        wishes: Wishes | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Asked:
        """All that is asked; options are read in OpenAI's form where no `wishes` are given. Raises BadSetting."""
        chosen, stream = self._chosen(fields), fields.take("stream", bool, False)
        wishes = wishes or take_wishes(fields, more)
        return Asked(
            chosen,
            prompts,
            wishes,
            stream,
            is_background(prompts, wishes.options),
            fields.unknown(),
        )

    async def _respond(self, request: Request, asked: Asked, writer: Writer) -> Response:
        return await respond(request, self._jobs, asked, writer)

    async def _told(
        self,
        request: Request,
        chosen: Chosen,
        make: Callable[[int], Render | Tokenize | Detokenize],
        kind: type[R],
    ) -> R:
        """What the engine says to a question, unless the client leaves. Raises RequestFailed."""
        report = await unless_gone(request, self._jobs.ask(chosen.load, make).last())
        assert isinstance(report, kind)
        return report

    async def _rendered(
        self, request: Request, chosen: Chosen, prompt: Prompt, options: Mapping[str, Any]
    ) -> Rendered:
        """The prompt that a reply to these messages would read."""
        make = partial(Render, messages=prompt.messages, options=options)
        return await self._told(request, chosen, make, Rendered)

    async def _tokens(
        self, request: Request, chosen: Chosen, text: str, *, parse_special: bool, add_special: bool = False
    ) -> Tokens:
        make = partial(Tokenize, text=text, parse_special=parse_special, add_special=add_special)
        return await self._told(request, chosen, make, Tokens)

    def _loaded(self) -> Loaded:
        """The loaded pair. Raises RequestFailed while there is none."""
        if self._jobs.loaded is None:
            raise failed(503, "unavailable_error", "loading", self._jobs.stage or "loading the pair")
        return self._jobs.loaded
