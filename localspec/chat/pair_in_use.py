"""A loaded pair in use: the jobs of replies, and what all sessions of the pair share."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from localspec.algorithm.images import without_images
from localspec.chat.constraints import PromptBuilder
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.options import Request
from localspec.chat.reply import Ends, ReplyJob, ReplyWriter
from localspec.chat.text import TextStream
from localspec.chat.thinking_budget import ThinkingBudget
from localspec.errors import BadSetting, ContextFull
from localspec.events import Reply
from localspec.prompt.fitting import Fitted, Fitter, Messages, Omission
from localspec.prompt.messages import Infill, Message, Reasoning, are_continued, with_reply
from localspec.prompt.tokens import Prompt, following_messages, tokens_of
from localspec.sampler.passes import common_prefix_length
from localspec.structure.json_calls import JsonCallReader
from localspec.structure.read_calls import CallReader

Cancelled = Callable[[], bool]
SHORTEN = "shorten the prompt, or start again with a larger context: --context N"


@dataclass(frozen=True, eq=False)
class PairInUse:
    """A loaded pair as one client uses it. Its sessions share all fields except the last two."""

    pair: LoadedPair
    prompts: PromptBuilder
    writer: ReplyWriter
    reasoning: Reasoning = field(default_factory=Reasoning)
    omissions: list[Omission] = field(default_factory=list)  # a few of earlier prompts, the latest first
    sessions: set[object] = field(default_factory=set)  # the open sessions
    process: int = field(default_factory=os.getpid)
    owner: str = ""  # client whose reasoning is stored; no other client gets it
    stored_as: str = ""  # name of the stored conversation, for its prompt caches

    def prompt(self, messages: Messages, request: Request) -> Prompt:
        return self.prompts.encode(self.reasoning.put_back(messages, self._beside(request)), request)

    def keep_reasoning(self, messages: Messages, reply: Reply, request: Request) -> None:
        self.reasoning.keep(messages, reply, self._beside(request))

    def job(self, messages: Messages, request: Request, cancelled: Cancelled, requested: float) -> ReplyJob:
        template, fitted = self.pair.template, self._fit(messages, request)
        prompt = fitted.prompt
        style = template.thinking_style(prompt.text)
        start = len(without_images(prompt.tokens))
        begun = messages[-1].content if are_continued(messages) else ""
        constraint = self.prompts.constraint(request, style, start, begun)
        calls = self.prompts.tool_call_format(request)
        text = TextStream(
            self.pair.vocabulary,
            style,
            (*template.stops, *request.stop),
            # A space at the beginning of a text stays, because the text must match its grammar exactly.
            continues_text=constraint is not None or are_continued(messages),
            calls=calls if request.tool_choice != "none" else None,
            functions=request.functions,
            reader=partial(JsonCallReader, several=request.parallel_tool_calls)
            if request.json_calls and request.tool_choice == "auto" and request.grammar is None
            else partial(CallReader, distinct=request.tool_choice == "required"),
            fenced=request.grammar is not None and request.grammar.closes,
        )
        text.resume(begun)
        needs_checkpoints = self.pair.target.needs_checkpoints
        return ReplyJob(
            prompt.tokens,
            self.prompts.branch_points(fitted.messages, prompt, request) if needs_checkpoints else (),
            request,
            text,
            cancelled,
            constraint,
            trimmed_messages=fitted.dropped_messages,
            requested=requested,
            generic_calls=calls is not None and not calls.native,
            questions=_questions(messages),
            conversation=self.stored_as,
            budget=None
            if isinstance(request.think, bool | None)
            else ThinkingBudget(constraint, request, text, template.thinking_ending, start),
            changed=prompt.notice,
            spelled=self.prompts.spelled(fitted.messages, request),
            following=lambda reply, ends: self.ahead(with_reply(messages, reply), request, ends),
        )

    def _fit(self, messages: Messages, request: Request) -> Fitted:
        trims, beside = request.overflow == "trim", self._beside(request)
        self.check_space(sum(len(message.content) for message in messages[-1 if trims else 0 :]))
        fitter = Fitter(
            lambda messages: self.prompts.encode(messages, request),
            self.pair.target.capacity,
            request.max_tokens,
            thinks=request.think is not False and self.pair.template.thinking_style("") is not None,
            beside=beside,
        )
        fitted = fitter.fit(self.reasoning.put_back(messages, beside), trim=trims, earlier=self.omissions)
        if found := fitted.omission:
            self.omissions[:] = [found, *(o for o in self.omissions if o != found)][:8]
        return fitted

    def ahead(self, messages: Messages, request: Request, ends: Ends, typed: str = "") -> ReplyJob | None:
        """Return a job that prefills the part of the next prompt that does not depend on the next message.

        `typed`: the certain beginning of that message. Return None if `ends()` came true before.
        """
        counts = list[int]()
        for text in dict.fromkeys(("", typed)):
            prompts = list[Prompt]()
            for following in following_messages(messages, text):
                if ends():
                    return None
                fitted = self._fit((*messages, *following), request)
                prompts.append(fitted.prompt)
            common = (common_prefix_length(prompts[-1].tokens, 0, other.tokens) for other in prompts[:-1])
            counts.append(min(common))
        points: Sequence[int] = ()
        if self.pair.target.needs_checkpoints:
            points = self.prompts.branch_points(fitted.messages, fitted.prompt, request)[:-1]
        return ReplyJob(
            fitted.prompt.tokens[: counts[-1] + 1],  # the last token of a prompt is not prefilled
            (*points, counts[0]),
            request,
            TextStream(self.pair.vocabulary, None, ()),
            ends,
            questions=_questions(messages),
            conversation=self.stored_as,
            sent=counts[0] if typed else None,
        )

    def _beside(self, request: Request) -> str:
        """Return client and tools as one text. Reasoning is stored by this text and by the messages before it."""
        return json.dumps([self.owner, request.tools], sort_keys=True, default=str)

    def raw_job(
        self, text: str | Sequence[int | str] | Infill, request: Request, cancelled: Cancelled
    ) -> ReplyJob:
        vocabulary, capacity = self.pair.vocabulary, self.pair.target.capacity
        text_stream = TextStream(vocabulary, None, request.stop, continues_text=True)
        if request.tools:
            raise BadSetting("a raw prompt cannot have tools", hint="leave out the tools, or send messages")
        self.check_space(len(text) if isinstance(text, str) else 0)
        if isinstance(text, Infill):
            reserve = min(request.max_tokens or capacity, capacity // 4) + 1
            tokens = text.prompt(vocabulary, self.pair.target_name, capacity - reserve)
        else:
            tokens = tokens_of(text, vocabulary)
        constraint = self.prompts.constraint(request, None, len(tokens))
        messages = (Message("user", text),) if isinstance(text, str) else ()
        spelled = self.prompts.spelled(messages, request)
        points = (len(tokens),)
        return ReplyJob(tokens, points, request, text_stream, cancelled, constraint, spelled=spelled)

    def check_space(self, characters: int) -> None:
        """Refuse a text that is too long for the context, because its tokenisation would take seconds."""
        capacity, vocabulary = self.pair.target.capacity, self.pair.vocabulary
        if characters <= 16 * capacity:  # a text of this length is tokenised quickly
            return
        least = -(-characters // max(len(vocabulary.piece(token)) for token in range(vocabulary.size)))
        if least > capacity:
            raise ContextFull.of("prompt", least, capacity, more=True, hint=SHORTEN)


def _questions(messages: Messages) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (m.role, m.content, *(i.digest for i in m.images)) for m in messages if m.role != "assistant"
    )
