"""Images in messages: what their files say, what is refused, and that no client makes this machine read a file."""

import base64
import struct
from contextlib import suppress
from dataclasses import replace

import pytest

from localspec.algorithm.images import FIRST_ID, ImageRow
from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.errors import BadSetting, BadTemplate
from localspec.options import data_dir
from localspec.prompt import images
from localspec.prompt.images import PLACE, Image, image_of, with_marks
from localspec.prompt.messages import Message, as_messages
from localspec.prompt.template import CHATML, ChatTemplate
from localspec.prompt.tokens import encode
from tests.prompt.carried import TEMPLATES, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 37, 200, 8, 2, 0, 0, 0) + bytes(4)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
THUMBNAIL = b"\xff\xd8\xff\xc0\0\x11\x08" + struct.pack(">HH", 9, 9) + bytes(10)


def jpeg(frame, filling=b""):
    size = struct.pack(">BHHB", 8, 200, 37, 3) + bytes(9)
    parts = ((0xE1, b"Exif\0\0" + THUMBNAIL), (0xC4, bytes(30)), (0xDB, bytes(65)), (frame, size))
    segments = (bytes((0xFF, marker)) + struct.pack(">H", len(text) + 2) + text for marker, text in parts)
    return b"\xff\xd8" + filling.join(segments)


def bmp(height, info):
    return b"BM" + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, info, 37, height, 1, 24) + bytes(24)


FILES = {
    "png": PNG,
    "gif": b"GIF89a" + struct.pack("<HH", 37, 200) + bytes(9),
    "bmp from the bottom": bmp(200, 40),
    "bmp from the top": bmp(-200, 124),
    "ppm": b"P6\n37 200\n255\n" + bytes(9),
    "pgm with comments": b"P5 # width and height\n# 7 7\n37\n200 255 " + bytes(9),
    "jpeg": jpeg(0xC0),
    "progressive jpeg with filling": jpeg(0xC2, filling=b"\xff\xff"),
}


@pytest.mark.parametrize("name", FILES)
def test_width_and_height_are_read_from_the_header_and_a_part_of_it_never_fails(name):
    assert image_of(FILES[name]).size == (37, 200)
    for end in range(len(FILES[name])):
        with suppress(BadSetting):
            assert min(image_of(FILES[name][:end]).size) > 0


REFUSED = {
    "empty": (b"", "empty"),
    "text": (b"no picture", "no image"),
    "WebP": (b"RIFF\x24\0\0\0WEBPVP8 " + bytes(24), "WebP"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(24), "HEIC"),
    "PDF": (b"%PDF-1.7\n" + bytes(24), "PDF"),
    "no width": (PNG.replace(struct.pack(">I", 37), bytes(4)), "no image"),
    "too many pixels": (PNG.replace(struct.pack(">I", 37), struct.pack(">I", 2**31)), "too many"),
    "too large": (PNG + bytes(images.MOST_BYTES), "more than 32 MiB"),
    "number": (7, "of type int"),
    "http": ("HTTP://127.0.0.1:9/a.png", "not fetched"),
    "damaged base64": ("data:image/png;base64,@@@@", "damaged"),
    "a URL without base64": ("data:image/png,abc", "not fetched|not in base64"),
    "a missing file": ("/nowhere/a.png", "cannot read the image"),
    "no path": ("a\0b.png", "cannot read the image"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_image_is_refused_in_a_sentence_with_a_hint(name):
    given, words = REFUSED[name]
    with pytest.raises(BadSetting, match=words) as caught:
        image_of(given)
    assert caught.value.hint
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("address", ["{}", "file://{}", "FILE:{}", "~/a.png", " {}", "data:{}", "./a.png"])
def test_no_text_in_a_message_makes_this_machine_read_a_file(tmp_path, monkeypatch, address):
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    text, opened, read = address.format(tmp_path / "a.png"), [], images._read
    monkeypatch.setattr(images, "_read", lambda path: opened.append(path) or read(path))
    parts = [{"type": "image_url", "image_url": source} for source in (text, {"url": text})]
    parts += [{"type": "input_image", "image_url": text}, {"type": "image", "image": text}]
    for role in ("user", "tool", "system"):
        for beside in (*({"content": [part]} for part in parts), {"content": "Hi", "images": [text]}):
            with pytest.raises(BadSetting):
                as_messages([{"role": role, **beside}])
    assert opened == []
    assert as_messages("Hi", [tmp_path / "a.png"])[0].images[0].data == PNG  # Python's caller may name a file


_BEGUN = f"[[{images._KEY[:8]}0]]"  # another text in each process


@pytest.mark.parametrize("text", [f"a{PLACE}b", "[[0]]", pytest.param(_BEGUN, id="begun"), "<__media__>"])
def test_a_text_that_looks_like_an_image_stays_as_it_is(text):
    (message,) = as_messages([{"role": "user", "content": text}])
    assert (message.content, message.images) == (text, ())
    assert with_marks([message]) == ((message,), {})
    prompt = encode(CharacterVocabulary(), ChatTemplate(CHATML, bos_text="<s>", eos_text="</s>"), [message])
    assert "".join(map(CharacterVocabulary().text, prompt.tokens)) == prompt.text
    assert f"user\n{text}<|im_end|>" in prompt.text


def test_a_text_beside_an_image_cannot_move_it():
    texts = [{"type": "text", "text": text} for text in (f"{PLACE} one", "two")]
    content = [texts[0], {"type": "image_url", "image_url": URL}, texts[1]]
    (marked,), found = with_marks(as_messages([{"role": "user", "content": content}]))
    assert marked.content == f"\ufffd one{next(iter(found))}two"
    (beside,) = as_messages([{"role": "user", "content": f"one {PLACE}", "images": [URL, URL]}])
    assert beside.content == f"{PLACE}{PLACE}one \ufffd"


def encoded(source, messages):
    """The tokens of a prompt in which each image is one row."""
    marked, found = with_marks(messages)
    rows = {mark: ImageRow.of(None, [number]) for number, mark in enumerate(found)}
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    return encode(CharacterVocabulary(), template, marked, images=rows).tokens


TALK = (
    Message("user", f"one {PLACE} two", images=(Image(PNG),)),
    Message("assistant", "three"),
    Message("user", f"{PLACE}{PLACE}four", images=(Image(PNG), Image(FILES["gif"]))),
)


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_images_are_at_their_places_in_the_prompt_of_every_template(name):
    try:
        encoded(TEMPLATES[name], [replace(message, content="text", images=()) for message in TALK])
    except BadTemplate:
        pytest.skip("the template refuses this conversation without images as well")
    tokens = encoded(TEMPLATES[name], TALK)
    at = [index for index, token in enumerate(tokens) if isinstance(token, ImageRow)]
    assert [tokens[index] - FIRST_ID for index in at] == [0, 1, 2]
    assert [chr(tokens[index]) for index in (at[0] - 2, at[0] + 2, at[1] + 2)] == ["e", "t", "f"]


@pytest.mark.parametrize("body", ["", "{{ m.content * 2 }}", "{{ m.content | upper }}"])
def test_a_template_that_drops_repeats_or_changes_an_image_is_reported_in_a_sentence(body):
    with pytest.raises(BadTemplate, match="leaves an image out or repeats it"):
        encoded("{% for m in messages %}<|im_start|>" + body + "<|im_end|>{% endfor %}", TALK[:1])


@pytest.mark.usefixtures("home")
def test_a_conversation_keeps_its_images_when_their_files_are_gone_until_it_is_deleted(tmp_path):
    (path := tmp_path / "a.png").write_bytes(PNG + bytes(range(256)) * 4)
    image = image_of(path)
    path.unlink()
    asked = StoredMessage("user", f"{PLACE}What is this?", images=(image,))
    talk = replace(Conversation.new("demo"), messages=(asked, StoredMessage("assistant", "waves")))
    conversations.save(data_dir(), talk)
    found = conversations.read(data_dir(), talk.name)
    assert (found.messages[0].images, found.title) == ((image,), "[a.png, 37 x 200 pixels]What is this?")
    text = base64.b64encode(image.data)

    def held():
        contents = [path.read_bytes() for path in data_dir().rglob("*") if path.is_file()]
        return any(
            text[begin : begin + 40] in each for each in contents for begin in range(0, len(text) - 40, 7)
        )

    assert held()
    conversations.delete(data_dir(), talk.name)
    assert not held()
