"""Which path is answered by what."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from localspec.serve import anthropic, ollama
from localspec.serve.anthropic import Anthropic
from localspec.serve.guard import Access, Guard
from localspec.serve.http import ErrorBody, answer, guarded, openai_error
from localspec.serve.jobs import Jobs
from localspec.serve.llama_server import LlamaServer
from localspec.serve.ollama import Ollama
from localspec.serve.openai import OpenAI
from localspec.serve.pairs import Pairs
from localspec.serve.problems import BROKEN, Problem, failed
from localspec.serve.responses import Responses

Handler = Callable[[Request], Awaitable[Response]]


def application(
    jobs: Jobs, access: Access, any_model: bool, called: str, *, on_answer: Callable[[str, str, int], object]
) -> ASGIApp:
    """The whole endpoint, on one queue."""
    routes = routes_of(jobs, Pairs(jobs, any_model=any_model, called=called))
    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown, Exception: broken})
    return Guard(app, access, on_answer)


def routes_of(jobs: Jobs, pairs: Pairs) -> list[Route]:
    """Clients differ in what they call the base URL: paths of OpenAI and Anthropic are there with and without /v1."""
    openai, anthropic_ = OpenAI(jobs, pairs), Anthropic(jobs, pairs)
    llama, api = LlamaServer(jobs, pairs), Ollama(jobs, pairs)
    of_openai = [
        ("POST", "/chat/completions", openai.chat),
        ("POST", "/chat/completions/input_tokens", openai.input_tokens),
        ("POST", "/completions", openai.completions),
        ("POST", "/responses", Responses(jobs, pairs).responses),
        ("GET", "/models", openai.models),
        ("GET", "/models/{name:path}", openai.model),
        ("GET", "/health", llama.health),
        *(("POST", path, without_vectors) for path in ("/embeddings", "/rerank", "/reranking")),
    ]
    of_anthropic = [
        ("POST", "/messages", anthropic_.messages),
        ("POST", "/messages/count_tokens", anthropic_.count_tokens),
    ]
    of_llama_server = [
        ("GET", "/props", llama.props),
        *((method, path, slots) for method, path in (("GET", "/slots"), ("POST", "/slots/{id}"))),
        ("GET", "/metrics", llama.metrics),
        ("POST", "/completion", llama.completion),
        ("POST", "/embedding", without_vectors),
        ("POST", "/infill", llama.infill),
        ("POST", "/tokenize", llama.tokenize),
        ("POST", "/detokenize", llama.detokenize),
        ("POST", "/apply-template", llama.apply_template),
        ("GET", "/", greeting),
    ]
    of_ollama = [
        ("GET", "/api/version", api.version),
        ("GET", "/api/tags", api.tags),
        ("GET", "/api/ps", api.running),
        ("POST", "/api/chat", api.chat),
        ("POST", "/api/generate", api.generate),
        ("POST", "/api/show", api.show),
        *(("POST", path, without_vectors) for path in ("/api/embed", "/api/embeddings")),
        *((method, "/api/{path:path}", api.refused) for method in ("GET", "POST", "DELETE")),
    ]
    return [
        *listed(of_openai, openai_error, "/v1", ""),
        *listed(of_anthropic, anthropic.error_body, "/v1", ""),
        *listed(of_llama_server, openai_error, ""),
        *listed(of_ollama, ollama.error_body, ""),
    ]


def listed(
    rows: Sequence[tuple[str, str, Handler]], error_body: ErrorBody, *prefixes: str
) -> Iterator[Route]:
    for method, path, handler in rows:
        yield from (
            Route(prefix + path, guarded(handler, error_body), methods=[method]) for prefix in prefixes
        )


async def greeting(request: Request) -> Response:
    return Response("localspec is running\n", media_type="text/plain")


async def without_vectors(request: Request) -> Response:
    what = "localspec writes text and makes no embeddings (run an embedding model in another server)"
    raise failed(501, "not_supported_error", "not_supported", what)


async def slots(request: Request) -> Response:
    what = "one reply is written at a time and caches are not saved (/health and /metrics tell the state)"
    raise failed(501, "not_supported_error", "not_supported", what)


async def unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}: {error.detail}"
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    problem = Problem(error.status_code, kind, kind, what)
    return answer(openai_error(problem), status=error.status_code, headers=error.headers)


async def broken(request: Request, error: Exception) -> Response:
    problem = Problem(*BROKEN, f"localspec failed: {type(error).__name__}")
    return answer(openai_error(problem), status=500)
