"""What the target is asked: the prompts of `bench` and `verify`, as its own template writes them."""

from collections.abc import Iterator

from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.prompt import encode
from localspec.measure.prompts import built_in_prompts, in_turn
from localspec.measure.verify.prompts import VERIFY_PROMPTS


def prompts(engine: LoadedPair) -> Iterator[list[int]]:
    """Every built-in prompt, the short ones first, in tokens."""
    for prompt in (*VERIFY_PROMPTS, *in_turn(built_in_prompts())):
        yield encode(engine.vocabulary, engine.template, [Message("user", prompt.text)]).tokens
