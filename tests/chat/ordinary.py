"""Ordinary histories, and digests of their prompts on every carried template.

`python -m tests.chat.ordinary` writes the digests.
"""

import json
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from unittest import mock

from localspec.chat.constraints import PromptBuilder
from localspec.chat.options import request_from
from localspec.chat.template import ChatTemplate
from localspec.sampler.sampling import Sampling
from localspec.serve.openai import prompt_of
from tests.chat.carried import TEMPLATES
from tests.chat.character_vocabulary import CharacterVocabulary
from tests.chat.conversations import ASK, CONVERSATIONS, OSLO, RAIN, SYSTEM, TOOLS, called, result, says

RECORDED = Path(__file__).with_name("ordinary.json")
AGAIN, YES = says("user", "And in Rome?"), says("assistant", "Yes.")
ROME = called(("call00007", "get_weather", {"city": "Rome"}))
SUN = result("call00007", "sun")
HISTORIES = {
    **CONVERSATIONS,
    "long": ([SYSTEM, ASK, YES, AGAIN, YES, AGAIN, YES, AGAIN], None),
    "calls without tools": ([SYSTEM, ASK, OSLO, RAIN, YES, AGAIN], None),
    "two questions": ([SYSTEM, ASK, AGAIN], None),
    "continued": ([ASK, says("assistant", "It will")], None),
    "many rounds": ([SYSTEM, ASK, OSLO, RAIN, YES, AGAIN, ROME, SUN], TOOLS),
}


class FixedDate(datetime):
    @classmethod
    def now(cls):
        return cls(2026, 3, 1)


def prompts(name):
    """The prompt of each ordinary history on a template, or the complaint."""
    with mock.patch("localspec.chat.sandbox.datetime", FixedDate):
        template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
        builder, found = PromptBuilder(CharacterVocabulary(["<s>", "</s>"]), template), {}
        for title, (messages, tools) in HISTORIES.items():
            request = request_from({"tools": tools} if tools else {}, Sampling())
            try:
                found[title] = builder.encode(prompt_of(messages).messages, request).text
            except Exception as error:  # noqa: BLE001  whatever a template raises
                found[title] = f"refused: {error}"
    return found


def digest(text):
    return blake2b(text.encode(), digest_size=4).hexdigest()


def main():
    found = {name: {k: digest(v) for k, v in prompts(name).items()} for name in sorted(TEMPLATES)}
    RECORDED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
