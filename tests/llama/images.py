"""Tiny models that read images, and the replies that llama.cpp's server gave to chats with them."""

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.tiny_images import TARGETS, ImageModel, pictures, write_image_model

# By kind and name of a chat: turns at temperature 0. Each reply ends before a near-tie.
RECORDED = json.loads((Path(__file__).parent / "data" / "images.json").read_text(encoding="utf-8"))
KINDS = tuple(TARGETS)
LOAD = {"threads": 1, "context_length": 2048}
PICTURES = pictures()


@dataclass(frozen=True)
class Turn:
    """A question after earlier turns, and the server's reply to it, without a space at the beginning."""

    messages: list[dict[str, Any]]
    text: str
    max_tokens: int
    prompt_tokens: int
    cached_tokens: int  # after the turn before

    @property
    def options(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": self.max_tokens}


def turns_of(kind: str, name: str) -> list[Turn]:
    messages, found = [], []
    for content, text, *counts in RECORDED[kind][name]:
        parts = [
            {"type": "text", "text": part} if isinstance(part, str) else image_url(**part) for part in content
        ]
        messages = [*messages, {"role": "user", "content": content if isinstance(content, str) else parts}]
        found.append(Turn(messages, text, *counts))
        messages = [*messages, {"role": "assistant", "content": text}]
    return found


def image_url(image: str | bytes) -> dict[str, Any]:
    """OpenAI's part of a message for a picture, or for the content of a file."""
    data = PICTURES[image] if isinstance(image, str) else image
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@cache
def model_in(folder: Path, kind: str) -> ImageModel:
    """The files of one kind in a folder of their own, written once."""
    (folder / kind).mkdir()
    return write_image_model(folder / kind, kind)
