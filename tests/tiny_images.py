"""Tiny models that read images, each with a projector, a text-only draft and a few pictures."""

import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from tests.gguf.models import Shape, closed, matrix, write_gguf
from tests.gguf.vocabularies import add_facts

_GEMMA = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}<start_of_image>{% elif item['type'] == 'text' %}{{ item['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_QWEN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif item['type'] == 'text' %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SMOLVLM = (  # knows only lists
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_TILES = tuple(f"<row_{row}_col_{column}>" for row, column in itertools.product((1, 2, 3), repeat=2))


def _shape(
    architecture: str, template: str, special: tuple[str, ...], seed: int, name: str = "", **more
) -> Shape:
    more |= {"vocab_size": 640, "recorded": True, "name": f"tiny {name or architecture}"}
    return Shape(architecture, special=special, chat_template=template, seed=seed, **more)


_GEMMA_MARKS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>")
_GEMMA_FACTS = {"vocab": "spm", "window": 512, "add_bos": True}
_SMOLVLM_MARKS = (
    "\n\n",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "<image>",
    *_TILES,
)
# The models, by the text model's family: what llama.cpp does with images differs in these.
TARGETS = {
    # one chunk of 16 rows that see each other
    "gemma3": _shape("gemma3", _GEMMA, (*_GEMMA_MARKS, "<end_of_image>"), 3, **_GEMMA_FACTS),
    # one chunk of 70 to 1120 rows that see each other in every other layer
    "gemma4": _shape("gemma4", _GEMMA, (*_GEMMA_MARKS, "<|image>", "<image|>"), 19, **_GEMMA_FACTS),
    # one chunk of as many rows as the picture needs, and fewer positions than rows
    "qwen2vl": _shape("qwen2vl", _QWEN, _VISION, 5),
    # the same, with layers whose state cannot be cut
    "qwen35": _shape("qwen35", _QWEN, _VISION, 13),
    # a chunk of 16 rows for each of up to four tiles and for the whole, with text between
    "idefics3": _shape("llama", _SMOLVLM, _SMOLVLM_MARKS, 7, name="idefics3"),
}
# The drafts' architectures: qwen2 has no positions of two dimensions.
_DRAFTS = {kind: shape.architecture for kind, shape in TARGETS.items()} | {"qwen2vl": "qwen2"}


@dataclass(frozen=True, slots=True)
class ImageModel:
    """Files of one kind of model."""

    target: Path
    draft: Path
    projector: Path


def write_image_model(folder: Path, kind: str, noise: float = 0.02) -> ImageModel:
    """Write a target, its projector, and as its draft the same weights with `noise`."""
    shape = TARGETS[kind]
    draft = replace(shape, architecture=_DRAFTS[kind], name=f"{shape.name} draft", noise=noise)
    return ImageModel(
        target=_varied(write_gguf(folder / f"{kind}.gguf", shape), kind),
        draft=_varied(write_gguf(folder / f"{kind}-draft.gguf", draft), kind),
        projector=write_projector(folder / f"mmproj-{kind}.gguf", kind),
    )


def _varied(path: Path, kind: str) -> Path:
    """Change weights so that a reply is readable text, and follows from more than its last token."""
    reader = gguf.GGUFReader(path, "r+")
    tokens, kinds, end = (
        reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "token_type", "eos_token_id")
    )
    silent = [
        number != end and (kind != gguf.TokenType.NORMAL or not text.translate(_SPACES).isascii())
        for number, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
    ]
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    tensors.get("output.weight", tensors["token_embd.weight"])[silent] *= np.float16(0.01)
    for name, values in tensors.items():
        if kind.startswith("gemma") and name.endswith("attn_q_norm.weight"):
            values *= {"gemma3": 4, "gemma4": 2}[kind]  # one that looks at all tokens alike repeats itself
    return path


_SPACES = str.maketrans("▁ĠĊ", "   ")

_WIDTH, _HIDDEN, _LAYERS, _HEADS, _PATCH = 32, 64, 2, 2, 8  # of the projectors' vision models


def write_projector(path: Path, kind: str, text_width: int | None = None, seed: int = 11) -> Path:
    """Write the vision model and the projector for the target of one kind, or for one of another width."""
    random = np.random.default_rng(seed)
    text_width = text_width or TARGETS[kind].embedding
    writer = gguf.GGUFWriter(path, "clip")
    add_facts(writer, name=f"tiny {kind} projector", file_type=gguf.LlamaFileType.ALL_F32)
    add_facts(
        writer, clip_has_vision_encoder=True, vision_embedding_length=_WIDTH, vision_block_count=_LAYERS
    )
    add_facts(writer, vision_feed_forward_length=_HIDDEN, vision_head_count=_HEADS, vision_patch_size=_PATCH)
    add_facts(writer, vision_projection_dim=text_width, vision_attention_layernorm_eps=1e-6)
    add_facts(writer, vision_image_mean=[0.5] * 3, vision_image_std=[0.5] * 3, vision_use_gelu=True)
    for name, values in _PROJECTORS[kind](writer, random, text_width):
        writer.add_tensor(name, values if values.dtype == np.float16 else values.astype(np.float32))
    return closed(writer, path)


Tensors = Iterator[tuple[str, np.ndarray]]


def _gemma3(writer: gguf.GGUFWriter, random: np.random.Generator, text_width: int) -> Tensors:
    add_facts(writer, clip_projector_type="gemma3", vision_image_size=128, vision_projector_scale_factor=4)
    yield from _siglip(random, patches=(128 // _PATCH) ** 2)
    yield "mm.soft_emb_norm.weight", np.full(_WIDTH, 4.0)
    yield "mm.input_projection.weight", matrix(random, _WIDTH, text_width, scale=8.0)


def _gemma4(writer: gguf.GGUFWriter, random: np.random.Generator, text_width: int) -> Tensors:
    add_facts(writer, clip_projector_type="gemma4v", vision_image_size=192, vision_projector_scale_factor=3)
    yield "v.patch_embd.weight", _patches(random)
    longest = 1120 * 3  # patches, in a picture of one row
    yield (
        "v.position_embd.weight",
        matrix(random, 2 * longest, _WIDTH).reshape(2, longest, _WIDTH).astype("f2"),
    )
    yield from _layers(random)
    yield "mm.input_projection.weight", matrix(random, text_width, _WIDTH, scale=8.0)


def _qwen2vl(writer: gguf.GGUFWriter, random: np.random.Generator, text_width: int) -> Tensors:
    add_facts(
        writer, clip_projector_type="qwen2vl_merger", vision_image_size=224, vision_spatial_merge_size=2
    )
    yield "v.patch_embd.weight", _patches(random)
    yield "v.patch_embd.weight.1", _patches(random)
    yield from _layers(random)
    yield from _linear(random, "mm.0", 4 * _WIDTH, 4 * _WIDTH)
    yield from _linear(random, "mm.2", text_width, 4 * _WIDTH, scale=4.0)


def _qwen35(writer: gguf.GGUFWriter, random: np.random.Generator, text_width: int) -> Tensors:
    add_facts(
        writer, clip_projector_type="qwen3vl_merger", vision_image_size=224, vision_spatial_merge_size=2
    )
    yield "v.patch_embd.weight.1", _patches(random)
    yield from _siglip(random, patches=(224 // _PATCH) ** 2, fused=True)
    yield from _linear(random, "mm.0", 4 * _WIDTH, 4 * _WIDTH)
    yield from _linear(random, "mm.2", text_width, 4 * _WIDTH, scale=4.0)


def _idefics3(writer: gguf.GGUFWriter, random: np.random.Generator, text_width: int) -> Tensors:
    add_facts(writer, clip_projector_type="idefics3", vision_image_size=64, vision_projector_scale_factor=2)
    add_facts(writer, vision_preproc_image_size=128)
    yield from _siglip(random, patches=(64 // _PATCH) ** 2)
    yield "mm.model.fc.weight", matrix(random, text_width, 4 * _WIDTH, scale=4.0)


_PROJECTORS = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "qwen2vl": _qwen2vl,
    "qwen35": _qwen35,
    "idefics3": _idefics3,
}


def _siglip(random: np.random.Generator, patches: int, fused: bool = False) -> Tensors:
    yield "v.patch_embd.weight", _patches(random)
    yield "v.patch_embd.bias", matrix(random, 1, _WIDTH)[0]
    yield "v.position_embd.weight", matrix(random, patches, _WIDTH)
    yield from _layers(random, fused)


def _patches(random: np.random.Generator) -> np.ndarray:
    return matrix(random, _WIDTH, 3 * _PATCH**2, scale=3.0).reshape(_WIDTH, 3, _PATCH, _PATCH)


def _layers(random: np.random.Generator, fused: bool = False) -> Tensors:
    for layer in range(_LAYERS):
        for name in ("ln1", "ln2"):
            yield from _norm(f"v.blk.{layer}.{name}")
        for name in ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v"):
            yield from _linear(random, f"v.blk.{layer}.{name}", 3 * _WIDTH if fused else _WIDTH, _WIDTH)
        yield from _linear(random, f"v.blk.{layer}.attn_out", _WIDTH, _WIDTH)
        yield from _linear(random, f"v.blk.{layer}.ffn_up", _HIDDEN, _WIDTH)
        yield from _linear(random, f"v.blk.{layer}.ffn_down", _WIDTH, _HIDDEN)
    yield from _norm("v.post_ln")


def _norm(name: str) -> Tensors:
    yield f"{name}.weight", np.ones(_WIDTH)
    yield f"{name}.bias", np.zeros(_WIDTH)


def _linear(random: np.random.Generator, name: str, rows: int, columns: int, scale: float = 1.0) -> Tensors:
    yield f"{name}.weight", matrix(random, rows, columns, scale)
    yield f"{name}.bias", np.zeros(rows)


def pictures() -> dict[str, bytes]:
    """Picture files of several sizes and formats; two of the same size differ in their pixels."""
    return {
        "dot.png": png(np.array([[[200, 30, 90]]], np.uint8)),
        "tall.png": png(_waves(37, 200, 1)),
        "square.png": png(_waves(64, 64, 2)),
        "other.ppm": ppm(_waves(64, 64, 3)),
        "wide.png": png(_waves(300, 100, 4)),
        "small.bmp": bmp(_waves(50, 70, 5)),
        "gray.png": png(_waves(96, 80, 6)[:, :, :1]),
        "large.png": png(_waves(640, 480, 7)),
    }


def _waves(width: int, height: int, seed: int) -> np.ndarray:
    """Coloured waves over blocks of random brightness."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    slopes = random.uniform(-20, 20, (2, 3))
    waves = np.sin(x[..., None] * slopes[0] + y[..., None] * slopes[1] + random.uniform(0, 6, 3))
    blocks = random.uniform(-1, 1, (8, 8, 3))[(y * 7.99).astype(int), (x * 7.99).astype(int)]
    return np.round((waves + blocks) * 63 + 127).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """A PNG of 8-bit pixels: rows of one, three or four channels."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunks(parts.items()))


def _png_chunks(parts: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, data in parts:
        yield struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def ppm(pixels: np.ndarray) -> bytes:
    height, width, _ = pixels.shape
    return b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()


def bmp(pixels: np.ndarray) -> bytes:
    """An uncompressed BMP: rows from the bottom, blue first, each padded to four bytes."""
    height, width, _ = pixels.shape
    padding = bytes(-3 * width % 4)
    rows = b"".join(row[:, ::-1].tobytes() + padding for row in pixels[::-1])
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + info + rows
