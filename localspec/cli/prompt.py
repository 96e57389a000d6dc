"""The prompt of a command, from an argument, from piped text, or from both."""

import argparse
import io
import os
import re
import stat
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from localspec.cli.commands.completion import complete_with_pairs
from localspec.display import print_notice, printable
from localspec.errors import BadSetting, NotOnDisk, UnknownPair
from localspec.files import MOST_BYTES, with_files

if TYPE_CHECKING:
    from localspec.prompt.images import Image

TIMEOUT_SECONDS = 2.0
# Names such as llama3.1 and qwen2.5:7b, and the names in Ollama's library that have no number.
_MODEL = re.compile(
    r"[a-z][a-z._-]+\d[\w.+-]*|[a-z][\w.-]+:[\w.-]+|mi[sx]tral|deepseek|(?:code|tiny)llama|llava|phi|smollm"
    r"|starcoder|vicuna",
    re.I,
)


def add_prompt_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    named = "[PAIR] [PROMPT]" if optional else "[PAIR] PROMPT"
    what = "the prompt, with an optional pair before it; piped text is appended, and - means piped text alone"
    complete_with_pairs(parser.add_argument("words", nargs="*", metavar=named, help=what))
    what = "add a text file to the prompt; may be repeated"
    parser.add_argument("-f", "--file", action="append", default=[], metavar="FILE", help=what)
    parser.set_defaults(name=None)


def take_pair(arguments: argparse.Namespace, *, prompt_optional: bool = False) -> None:
    """Move the first of the `words` to `name` if it names a pair. Raises BadSetting, UnknownPair.

    With `prompt_optional`, a first word without spaces is moved even if no pair has that name.
    """
    words: list[str] = arguments.words
    elsewhere = arguments.pair or arguments.target
    if words and (
        (is_pair(words[0]) and (prompt_optional or not elsewhere))
        or (prompt_optional and not elsewhere and len(words[0].split()) == 1 and words[0] != "-")
    ):
        arguments.name, arguments.words = words[0], words[1:]
    if words and not arguments.name:
        refuse_file(arguments)
        if not elsewhere:
            refuse_model(*words[:2])
    if len(arguments.words) > 1:
        quoted = f'"{printable(" ".join(arguments.words), 60)}"'
        hint = f"put a prompt of several words in quotes: {quoted}"
        raise BadSetting(f"unexpected argument {arguments.words[1]}", hint=hint)


def refuse_file(arguments: argparse.Namespace) -> None:
    """Raise BadSetting if the first word is a file. A single word without a dot is always a prompt."""
    first, *more = arguments.words
    if (more or "." in first) and os.path.isfile(os.path.expanduser(first)):
        prompt = printable(more[0] if more else "Summarise:", 60)
        from localspec.prompt.images import image_of

        does, command, option = "add its text to the prompt", arguments.command, "-f"
        with suppress(BadSetting):
            image_of(first)
            does, command, option = "add the image to the prompt", "run", "--image"
        hint = f'{does}: localspec {command} {option} {first} "{prompt}"'
        raise BadSetting(f"{first} is a file, not a {'pair' if more else 'prompt'}", hint=hint)


def refuse_model(word: str, second: str = "") -> None:
    """Raise UnknownPair if a word looks like the name of a model: qwen2.5:7b, gemma. `second`: the word after it."""
    from localspec.models.registry import named, near_names

    if second and (" " in second.strip() or near_names(word)):
        named(word)  # raises UnknownPair
    plain = word.lower().replace(":", "-")
    spellings = plain, re.sub(r"([a-z])(\d)", r"\1-\2", plain, count=1)  # such as qwen2.5-7b and llama-3.1-8b
    begun = [name for text in spellings for name in near_names(text) if name.lower().startswith(text)]
    if not (_MODEL.fullmatch(word) or (len(word) > 2 and begun)):
        return
    hint = "`localspec pairs` lists pairs"
    if near := begun or near_names(word):
        does = f"run {near[0]} PROMPT` asks" if named(near[0]).on_disk else f"pull {near[0]}` downloads"
        hint = f"`localspec {does} a model like it"
    hint += f'; to ask about the word, write a question: localspec run "What is {word}?"'
    raise UnknownPair(f"{word} is the name of a model, and no such model is here", hint=hint)


def prompt_of(arguments: argparse.Namespace) -> str:
    """Return argument, piped text and files as one prompt. Raises BadSetting if all are empty."""
    argument: str | None = next(iter(arguments.words), None)
    if argument == "-":
        parts = ["" if sys.stdin is None else piped_text()]
    else:
        piped = something_is_piped() and "-" not in vars(arguments).get("image", ())
        parts = [argument or "", piped_text() if piped else ""]
    prompt = with_files("\n\n".join(part for part in parts if part.strip()), arguments.file)
    if not prompt:
        if arguments.name:
            from localspec.models.names import find

            with suppress(NotOnDisk):  # a pair without files is no error here
                find(arguments.name)  # raises UnknownPair for a missing file
        given = argument not in (None, "-") or something_is_piped()
        command = " ".join(filter(None, ["localspec", arguments.command, arguments.name]))
        hint = f'write one, for example: {command} "What is speculative decoding?"'
        raise BadSetting("the prompt is empty" if given else "there is no prompt", hint=hint)
    return prompt


def images_of(arguments: argparse.Namespace) -> "tuple[Image, ...]":
    """Return the images of --image; the name - means standard input. Raises BadSetting."""
    if not arguments.image:
        return ()
    from localspec.prompt.images import MOST_BYTES, image_of

    piped = sys.stdin.buffer.read(MOST_BYTES + 1) if "-" in arguments.image else b""
    return tuple(image_of(piped if name == "-" else name) for name in arguments.image)


def is_pair(word: str) -> bool:
    """Return whether a word names a known pair, a GGUF file, or a model on Hugging Face or in another program."""
    from localspec.models.registry import is_known

    is_one = len(word.split()) == 1 or os.path.isfile(os.path.expanduser(word))
    is_file = word.lower().endswith(".gguf") and is_one
    if os.path.isfile(path := os.path.expanduser(word)) and "sha256" in word:
        with suppress(OSError), open(path, "rb") as file:  # read the content: Ollama names models by hashes
            is_file = file.read(4) == b"GGUF"
    on_hub = re.fullmatch(r"(?:https?://\S+/|(?:hf|huggingface)\.co/)?[\w.-]+/[\w.-]+:\S+", word)
    return is_file or on_hub is not None or is_known(word)


def something_is_piped() -> bool:
    """Return whether standard input is a pipe, a socket or a file, not a terminal or /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # stdin is closed, or was replaced by a Python program
        return False


def piped_text() -> str:
    """Read all of standard input. Explain a long wait by a notice, because a pipe can stay open and empty."""
    what = "waiting for the end of the piped text; if you pipe nothing, add `</dev/null`"
    waiting = threading.Timer(TIMEOUT_SECONDS, print_notice, [what])
    waiting.daemon = True
    waiting.start()
    try:
        buffer = getattr(sys.stdin, "buffer", None)
        if buffer is None:  # stdin was replaced by a Python program
            return sys.stdin.read()
        content = buffer.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise BadSetting("the piped text is longer than any model can read", hint="pipe a part of it")
        # Decode UTF-8 even where the system has another encoding.
        return io.StringIO(content.decode("utf-8"), newline=None).read()
    except UnicodeError as error:
        raise BadSetting("the piped text is not UTF-8", hint="convert it to UTF-8 first") from error
    finally:
        waiting.cancel()
