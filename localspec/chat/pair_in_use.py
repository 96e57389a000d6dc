"""A loaded pair in use: the jobs of replies, and what all sessions of the pair share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from localspec.chat.constraints import PromptBuilder
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.reply import Ends, ReplyJob, ReplyWriter
from localspec.chat.request import Request
from localspec.errors import BadSetting, ContextFull
from localspec.prompt.fitting import Fitted, Fitter, Omission
from localspec.prompt.messages import Infill, Message, Reasoning, with_reply
from localspec.prompt.tokens import Prompt, following_messages, tokens_of
from localspec.sampler.passes import common_prefix_length

Cancelled = Callable[[], bool]
SHORTEN = "shorten the prompt, or start again with a larger context: --context N"


@dataclass(frozen=True, eq=False)
class PairInUse:
    """A loaded pair with what its sessions share."""

    pair: LoadedPair
    prompts: PromptBuilder
    writer: ReplyWriter
    reasoning: Reasoning = field(default_factory=Reasoning)
    omissions: list[Omission] = field(default_factory=list)  # from earlier prompts, the latest first
    sessions: set[object] = field(default_factory=set)  # the open sessions
    process: int = field(default_factory=os.getpid)

    def prompt(self, request: Request) -> Prompt:
        messages = self.reasoning.put_back(request.messages, request.beside)
        return self.prompts.encode(replace(request, messages=messages))

    def job(self, request: Request, cancelled: Cancelled) -> ReplyJob:
        requested, fitted = perf_counter(), self._fit(request)
        prompt, fits = fitted.prompt, replace(request, messages=fitted.messages)
        return ReplyJob(
            request,
            prompt.tokens,
            self.prompts.branch_points(fits, prompt) if self.pair.target.needs_checkpoints else (),
            cancelled,
            style=self.pair.template.thinking_style(prompt.text),
            trimmed_messages=fitted.dropped_messages,
            requested=requested,
            changed=prompt.notice,
            spelled=self.prompts.spelled(fits),
            following=lambda reply, ends: self.ahead(
                replace(request, messages=with_reply(request.messages, reply)), ends
            ),
        )

    def _fit(self, request: Request) -> Fitted:
        trims, beside = request.overflow == "trim", request.beside
        self.check_space(sum(len(message.content) for message in request.messages[-1 if trims else 0 :]))
        fitter = Fitter(
            lambda messages: self.prompts.encode(replace(request, messages=messages)),
            self.pair.target.capacity,
            request.max_tokens,
            thinks=request.think is not False and self.pair.template.thinking_style("") is not None,
            beside=beside,
        )
        messages = self.reasoning.put_back(request.messages, beside)
        fitted = fitter.fit(messages, trim=trims, earlier=self.omissions)
        if found := fitted.omission:
            self.omissions[:] = [found, *(o for o in self.omissions if o != found)][:8]
        return fitted

    def ahead(self, request: Request, ends: Ends, typed: str = "") -> ReplyJob | None:
        """Return a job that prefills the part of the next prompt that does not depend on the next message.

        `typed`: the certain beginning of that message. Return None if `ends()` becomes true first.
        """
        counts = list[int]()
        for text in dict.fromkeys(("", typed)):
            prompts = list[Prompt]()
            for following in following_messages(request.messages, text):
                if ends():
                    return None
                fitted = self._fit(replace(request, messages=(*request.messages, *following)))
                prompts.append(fitted.prompt)
            common = (common_prefix_length(prompts[-1].tokens, 0, other.tokens) for other in prompts[:-1])
            counts.append(min(common))
        points: Sequence[int] = ()
        if self.pair.target.needs_checkpoints:
            fits = replace(request, messages=fitted.messages)
            points = self.prompts.branch_points(fits, fitted.prompt)[:-1]
        return ReplyJob(
            request,
            fitted.prompt.tokens[: counts[-1] + 1],  # the last token of a prompt is not prefilled
            (*points, counts[0]),
            ends,
            sent=counts[0] if typed else None,
        )

    def raw_job(self, request: Request, cancelled: Cancelled) -> ReplyJob:
        vocabulary, capacity, text = self.pair.vocabulary, self.pair.target.capacity, request.continued
        if request.tools:
            raise BadSetting("a raw prompt cannot have tools", hint="leave out the tools, or send messages")
        self.check_space(len(text) if isinstance(text, str) else 0)
        if isinstance(text, Infill):
            reserve = min(request.max_tokens or capacity, capacity // 4) + 1
            tokens = text.prompt(vocabulary, self.pair.target_name, capacity - reserve)
        else:
            tokens = tokens_of(text, vocabulary)
        messages = (Message("user", text),) if isinstance(text, str) else ()
        spelled = self.prompts.spelled(replace(request, messages=messages))
        return ReplyJob(request, tokens, (len(tokens),), cancelled, spelled=spelled)

    def check_space(self, characters: int) -> None:
        """Refuse a text that is too long for the context, because its tokenisation would take seconds."""
        capacity, vocabulary = self.pair.target.capacity, self.pair.vocabulary
        if characters <= 16 * capacity:  # a text of this length is tokenised quickly
            return
        least = -(-characters // max(len(vocabulary.piece(token)) for token in range(vocabulary.size)))
        if least > capacity:
            raise ContextFull.of("prompt", least, capacity, more=True, hint=SHORTEN)
