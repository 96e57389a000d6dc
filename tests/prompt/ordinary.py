"""Ordinary histories, and digests of their prompts on every carried template, before histories were made to fit.

`python -m tests.prompt.ordinary` writes the digests.
"""

from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from unittest import mock

from localspec.chat.constraints import PromptBuilder
from localspec.chat.request import request_from
from localspec.prompt.template import ChatTemplate
from localspec.sampler.sampling import Sampling
from localspec.serve.openai import prompt_of
from tests.prompt.carried import TEMPLATES
from tests.prompt.character_vocabulary import CharacterVocabulary
from tests.prompt.conversations import ASK, CONVERSATIONS, OSLO, RAIN, SYSTEM, TOOLS, called, result, says

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
WITH_CALLS = (
    "no arguments", "one call", "text before", "two calls", "reasoning", "nested", "rounds", "answered",
    "calls without tools", "many rounds",
)  # fmt: skip
# The templates lost parts of these histories, and Nemo's moved the system message with every turn.
MENDED = {
    **dict.fromkeys([
        "Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "MiniMax-M1",
        "Mistral-Small-3.2-24B-Instruct-2506", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "google-gemma-4-31B-it", "llama-cpp-deepseek-r1",
        "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "muse-glimmer",
        "meta-llama-Llama-3.3-70B-Instruct", "upstage-Solar-Open-100B",
    ], ("text before",)),
    **dict.fromkeys(["GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"], ("two calls",)),
    **dict.fromkeys(["LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"], WITH_CALLS),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("calls without tools",),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        "text before", "reasoning", "answered", "long", "calls without tools", "many rounds",
    ),
}  # fmt: skip


class FixedDate(datetime):
    @classmethod
    def now(cls):
        return cls(2026, 3, 1)


def prompts(name):
    """The prompt of each ordinary history on a template, or the complaint."""
    with mock.patch("localspec.prompt.sandbox.datetime", FixedDate):
        template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
        builder, found = PromptBuilder(CharacterVocabulary(["<s>", "</s>"]), template), {}
        for title, (messages, tools) in HISTORIES.items():
            request = request_from({"tools": tools} if tools else {}, Sampling())
            try:
                found[title] = builder.encode(replace(request, messages=prompt_of(messages).messages)).text
            except Exception as error:  # noqa: BLE001  whatever a template raises
                found[title] = f"refused: {error}"
    return found


def digest(text):
    return blake2b(text.encode(), digest_size=4).hexdigest()


def main():
    lines = (f'"{name}": "{" ".join(map(digest, prompts(name).values()))}"' for name in sorted(TEMPLATES))
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
