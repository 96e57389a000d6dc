"""Images in messages: their sources, and their sizes from the headers of their files, before pixels are decoded."""

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from localspec.errors import BadSetting

PLACE = "\ufffc"  # the character in place of each image in the content of a message
MOST_BYTES = 32 * 1024 * 1024  # maximum bytes of an image file
MOST_PIXELS = 64_000_000  # maximum pixels of an image; photos of phones have at most 50 million
NO_IMAGES = (
    "`localspec pairs` marks pairs that do, `localspec pull NAME --images` downloads what they need for it, and "
    "--mmproj FILE adds this to another model"
)
UNREAD, UNREAD_FILE = "[an image that this model cannot read]", "[a file that this model cannot read]"
_URL = re.compile(r"\Adata:[\w.+/;=-]*?;base64,", re.IGNORECASE)
_KEY = secrets.token_hex(16)  # random, so that no message can contain it

ReadImage = Callable[[bytes], Sequence[int]]
"""A function that returns the tokens of an image, as `localspec.llama.images.Projector.tokens` does."""


@dataclass(frozen=True)
class Image:
    data: bytes  # the content of the file
    name: str = ""

    @cached_property
    def digest(self) -> str:
        return sha256(self.data).hexdigest()

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, from the header of the file. Raises BadSetting."""
        what = self.name or "the image data"
        if len(self.data) > MOST_BYTES:
            raise BadSetting(f"{what} has more than {MOST_BYTES // 2**20} MiB", hint=_SMALLER)
        width, height = _size(self.data)
        if not width or not height:
            kinds = (_OTHERS.get(self.data[at : at + 4]) for at in (0, 4))
            why = next(filter(None, kinds), "no image that localspec can read" if self.data else "empty")
            raise BadSetting(f"{what} is {why}", hint="send a PNG, JPEG, GIF, BMP or PPM file")
        if width * height > MOST_PIXELS:
            raise BadSetting(f"{what} has {width} x {height} pixels, which is too many", hint=_SMALLER)
        return width, height

    @property
    def about(self) -> str:
        width, height = self.size
        return f"{self.name or 'image'}, {width} x {height} pixels"


def shown(content: str, images: Sequence[Image]) -> str:
    """Return the content of a message with the name and the size of each image at its place."""
    texts = content.split(PLACE) if images and content.count(PLACE) == len(images) else [content]
    marks = (f"[{image.about}]" for image in images)
    return texts[0] + "".join(mark + text for text, mark in zip(texts[1:], marks, strict=False))


_SMALLER = f"send an image of at most {MOST_PIXELS // 10**6} million pixels"
# Kinds of files that llama.cpp does not read, by four bytes at the beginning or shortly after it.
_OTHERS = {
    b"RIFF": "a WebP file",
    b"ftyp": "a HEIC file or a video",
    b"%PDF": "a PDF file",
    b"II*\0": "a TIFF file",
}


def image_of(source: object) -> Image:
    """Return an image from the bytes of its file, its path, or a data URL. Raises BadSetting.

    A text is a data URL or a path. For messages of a client use `image_in_message`, which reads no paths.
    """
    if isinstance(source, str) and source[:5].lower() in ("data:", "http:", "https"):
        return from_url(source)
    if isinstance(source, str | Path):
        source = _read(Path(source).expanduser())
    if isinstance(source, bytes | bytearray | memoryview):
        source = Image(bytes(source))
    if not isinstance(source, Image):
        raise BadSetting(f"an image is of type {type(source).__name__}", hint="give a path or bytes")
    _ = source.size  # raises BadSetting
    return source


def image_in_message(source: object) -> Image:
    """Return the image of a message. Raises BadSetting. A text is never a path, because a client may have sent it."""
    return image_of(source) if isinstance(source, Image | bytes | Path) else from_url(source)


def from_url(url: object) -> Image:
    """Return the image in a data URL, or in bare base64. Raises BadSetting."""
    if not isinstance(url, str) or not url.strip():
        raise BadSetting("an image has no data", hint=_AS_URL)
    text = _URL.sub("", url, count=1)
    if re.match(r"[a-z]{2,10}:", text, re.IGNORECASE):
        what = "images are not fetched from other servers: " + text[:60].split("?")[0]
        raise BadSetting(what, hint=_AS_URL)
    try:
        data = base64.b64decode(re.sub(r"\s+", "", text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSetting("the base64 text of an image is damaged", hint=_AS_URL) from error
    return image_of(data)


_AS_URL = "send the image itself: data:image/png;base64,..."


def _read(path: Path) -> Image:
    try:
        with path.open("rb") as file:  # a byte more than allowed shows that the file is too large
            return Image(file.read(MOST_BYTES + 1), path.name)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no path"
        raise BadSetting(f"cannot read the image {path}: {why}", hint="check the path") from error


def _size(data: bytes) -> tuple[int, int]:
    """Return width and height from the header of an image file; (0, 0) for a file that llama.cpp does not read."""

    def number(begin: int, count: int, *, little: bool = False) -> int:
        return int.from_bytes(data[begin : begin + count], "little" if little else "big")

    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return number(16, 4), number(20, 4)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return number(6, 2, little=True), number(8, 2, little=True)
    if data.startswith(b"BM") and number(14, 4, little=True) in (40, 56, 108, 124):
        height = number(22, 4, little=True)  # negative if the rows begin at the top
        return number(18, 4, little=True) % 2**31, min(height, 2**32 - height)
    if found := re.match(rb"P[56](?:\s|#[^\n]*\n)+(\d{1,9})(?:\s|#[^\n]*\n)+(\d{1,9})\s", data[:512]):
        return int(found[1]), int(found[2])
    place = 2 if data.startswith(b"\xff\xd8\xff") else len(data)
    while place + 9 < len(data) and data[place] == 0xFF:  # the segments of a JPEG file
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return number(place + 7, 2), number(place + 5, 2)
        alone = marker in (0x01, 0xFF) or 0xD0 <= marker <= 0xD8
        place += (1 if marker == 0xFF else 2) if alone else 2 + number(place + 2, 2)
    return 0, 0


def without_earlier_images(messages: Sequence[Any]) -> tuple[Any, ...]:
    """Return messages with a short text in place of each image, except in a question at the end."""
    asked = question_of([m.role for m in messages])
    return tuple(
        replace(m, content=m.content.replace(PLACE, UNREAD), images=()) if m.images and n != asked else m
        for n, m in enumerate(messages)
    )


def question_of(roles: Sequence[object]) -> int:
    """Return the index of the last message if it is a question of the user, else -1.

    After a tool's result, some clients send its images in a message of the user, which is no question.
    """
    return len(roles) - 1 if roles[-1:] == ["user"] and roles[-2:-1] != ["tool"] else -1


def with_marks(messages: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Image]]:
    """Return messages with a secret text at the place of each image, and the images by these texts."""
    marked, images = [], dict[str, Image]()
    for message in messages:
        texts = message.content.split(PLACE) if message.images else [message.content]
        content = texts[0]
        for image, text in zip(message.images, texts[1:], strict=True):
            mark = f"[[{_KEY}{len(images)}]]"
            images[mark] = image
            content += mark + text
        marked.append(replace(message, content=content, images=()))
    return tuple(marked), images


def split_at_marks(text: str) -> list[str]:
    """Split a text at its marks, and keep the marks as parts, which have the odd indices."""
    return re.split(rf"(\[\[{_KEY}\d+\]\])", text)
