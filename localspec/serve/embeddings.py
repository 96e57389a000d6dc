"""The requests for vectors of texts and scores of documents, as in OpenAI, llama-server, Ollama, Jina and TEI."""

import time
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from localspec.engine.messages import Embed, Embedded
from localspec.errors import BadSetting
from localspec.serve.http import Interface, answer, dumped, fields_of, unless_gone
from localspec.serve.ollama import kept_seconds
from localspec.serve.options import Fields, Problem, Text, cut, texts_in
from localspec.serve.replies import ModelBeside

_TOGETHER: Final = 64  # number of texts in a message to the engine
_MOST_BYTES: Final = 256 * 2**20  # limit of the vectors in one answer
_AS_IT_IS: Final = -1  # the norm that leaves vectors as they are


class Embeddings(Interface):
    async def openai(self, request: Request) -> Response:
        fields = await fields_of(request)
        if "input" not in fields.rest:
            return await self.llama(request, fields)
        if (form := fields.take("encoding_format", str, "float")) not in ("float", "base64"):
            raise BadSetting(f"encoding_format cannot be {cut(form)}", hint="give float or base64")
        small, texts = self._pairs.choose_small(fields), texts_in(fields.rest["input"], "input")
        if small.pooling == "none":
            what = f"{small.name} makes a vector for each token, not for each text"
            raise BadSetting(what, hint="start the server with --pooling mean")
        found = await self._read(request, small, texts, fields)
        read = (lambda row: b64encode(row).decode()) if form == "base64" else numbers
        rows = enumerate(rows_of(found))
        entries = ({"object": "embedding", "index": index, "embedding": read(row)} for index, row in rows)
        return written({"object": "list", "model": small.name, "usage": usage(found)}, "data", entries)

    async def llama(self, request: Request, given: Fields | None = None) -> Response:
        fields = given or await fields_of(request)
        content = fields.rest.get("input", fields.rest.get("content"))
        small, texts = self._pairs.choose_small(fields), texts_in(content, "input")
        found = await self._read(request, small, texts, fields)
        rows, counts = rows_of(found), found.tokens if small.pooling == "none" else [1] * len(texts)
        each = enumerate([numbers(row) for row in islice(rows, count)] for count in counts)
        return written(None, "", ({"index": index, "embedding": own} for index, own in each))

    async def ollama(self, request: Request) -> Response:
        began, fields = time.perf_counter_ns(), await fields_of(request)
        small, given = self._pairs.choose_small(fields), fields.rest.get("input")
        truncate, texts = fields.take("truncate", bool, True), texts_in(given, "input") if given else ()
        found = await self._read(request, small, texts, fields, truncate=truncate)
        head = {"model": small.name, "prompt_eval_count": sum(found.tokens), "load_duration": 0}
        head["total_duration"] = time.perf_counter_ns() - began
        return written(head, "embeddings", map(numbers, rows_of(found)))

    async def ollama_one(self, request: Request) -> Response:
        fields = await fields_of(request)
        small, text = self._pairs.choose_small(fields), fields.take("prompt", str, "")
        fields.rest["embd_normalize"] = _AS_IT_IS
        found = await self._read(request, small, (text,) * bool(text), fields, truncate=True)
        return answer({"embedding": numbers(found.rows)})

    async def rerank(self, request: Request) -> Response:
        fields = await fields_of(request)
        small, is_tei = self._pairs.choose_small(fields, "rerank"), "texts" in fields.rest
        label, name, shows = "relevance_score", "document", "return_documents"
        if is_tei:
            label, name, shows = "score", "text", "return_text"
        query, documents = fields.need("query", str), fields.texts("texts" if is_tei else "documents")
        if not documents:
            raise BadSetting('the request has no "documents"', hint='give "documents" as a list of texts')
        most, shown = fields.take("top_n", int), fields.take(shows, bool, False)
        found = await self._read(request, small, documents, fields, query=query)
        scores = numbers(found.rows)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:most]
        results: list[dict[str, Any]] = [{"index": n, label: scores[n]} for n in best]
        for each, text in zip(results, (documents[n] for n in best), strict=True) if shown else ():
            each[name] = text if is_tei else {"text": text}
        head = {"object": "list", "model": small.name, "usage": usage(found)}
        return answer(results if is_tei else {**head, "results": results})

    async def _read(
        self, request: Request, small: ModelBeside, texts: Sequence[Text], fields: Fields, **more: Any
    ) -> Embedded:
        """Return the vectors of all texts. The texts go to the engine in parts, so that other requests run between."""
        more |= {"dimensions": fields.take("dimensions", int), "norm": fields.take("embd_normalize", int, 2)}
        kept = kept_seconds(fields.rest.pop("keep_alive", -1))
        embedded, rows, tokens = Embedded(b"", 1, ()), bytearray(), list[int]()
        try:
            for at in range(0, len(texts), _TOGETHER):
                part = tuple(texts[at : at + _TOGETHER])
                job = self._jobs.embed(Embed(0, small.file, part, small.pooling, first=at, **more))
                report = await unless_gone(request.receive, job.last())
                assert isinstance(report, Embedded)
                embedded = report
                tokens += report.tokens
                rows += report.rows
                if len(rows) > _MOST_BYTES:
                    what = f"{len(texts):,} texts are too many for one answer; send them in several requests"
                    raise Problem(413, "too_many_texts", what)
        finally:
            self._jobs.keep_small(small.key, kept)
        return replace(embedded, rows=bytes(rows), tokens=tuple(tokens))


def rows_of(found: Embedded) -> Iterator[bytes]:
    size = 4 * found.width
    return (found.rows[at : at + size] for at in range(0, len(found.rows), size))


def numbers(row: bytes) -> list[float]:
    return array("f", row).tolist()


def usage(found: Embedded) -> dict[str, int]:
    return dict.fromkeys(("prompt_tokens", "total_tokens"), sum(found.tokens))


def written(head: Mapping[str, Any] | None, name: str, entries: Iterable[object]) -> Response:
    """Return an answer: `head` with the list `name`, or a bare list without `head`. Entries are made when sent."""

    def chunks() -> Iterator[bytes]:
        yield b"[" if head is None else dumped(head)[:-1] + b"," + dumped(name) + b":["
        for number, entry in enumerate(entries):
            yield (b"," if number else b"") + dumped(entry)
        yield b"]" if head is None else b"]}"

    return StreamingResponse(chunks(), media_type="application/json")
