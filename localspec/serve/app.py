"""Which path is answered by what."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from localspec.engine.remote import PATH
from localspec.serve import anthropic, ollama
from localspec.serve.anthropic import Anthropic
from localspec.serve.connected import Connected
from localspec.serve.guard import Guard
from localspec.serve.http import ErrorBody, answer, guarded, openai_error
from localspec.serve.jobs import Jobs
from localspec.serve.llama_server import LlamaServer
from localspec.serve.ollama import Ollama
from localspec.serve.openai import OpenAI
from localspec.serve.pairs import Pairs
from localspec.serve.problems import Problem
from localspec.serve.responses import Responses

Handler = Callable[[Request], Awaitable[Response]]


def application(
    jobs: Jobs,
    *,
    api_key: str = "",
    any_model: bool = False,
    on_answer: Callable[[str, str, int], object] = lambda method, path, status: None,
) -> ASGIApp:
    """The whole endpoint, on one queue."""
    pairs = Pairs(jobs, any_model=any_model)
    openai = OpenAI(jobs, pairs)
    messages = Anthropic(jobs, pairs)
    routes = [
        *both("/chat/completions", openai.chat),
        *both("/chat/completions/input_tokens", openai.input_tokens),
        *both("/completions", openai.completions),
        *both("/responses", Responses(jobs, pairs).responses),
        *both("/models", openai.models, "GET"),
        *both("/models/{name:path}", openai.model, "GET"),
        *both("/messages", messages.messages, error_body=anthropic.error_body),
        *both("/messages/count_tokens", messages.count_tokens, error_body=anthropic.error_body),
    ]
    routes.append(Route(PATH, guarded(Connected(jobs, pairs).messages), methods=["POST"]))
    routes += llama_routes(LlamaServer(jobs, pairs)) + ollama_routes(Ollama(jobs, pairs))
    app = Starlette(routes=routes, exception_handlers={HTTPException: unknown, Exception: broken})
    return Guard(app, api_key=api_key, on_answer=on_answer)


def both(
    path: str, handler: Handler, method: str = "POST", error_body: ErrorBody = openai_error
) -> list[Route]:
    """A path with and without /v1: clients differ in what they call the base URL."""
    endpoint = guarded(handler, error_body)
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


def llama_routes(llama: LlamaServer) -> list[Route]:
    gets = {
        "/health": llama.health,
        "/v1/health": llama.health,
        "/props": llama.props,
        "/slots": llama.slots,
        "/metrics": llama.metrics,
    }
    posts = {
        "/completion": llama.completion,
        "/infill": llama.infill,
        "/slots/{id}": llama.slot,
        "/tokenize": llama.tokenize,
        "/detokenize": llama.detokenize,
        "/apply-template": llama.apply_template,
    }
    return [
        *(Route(path, guarded(handler), methods=["GET"]) for path, handler in gets.items()),
        *(Route(path, guarded(handler), methods=["POST"]) for path, handler in posts.items()),
    ]


def ollama_routes(api: Ollama) -> list[Route]:
    gets = {"/api/version": api.version, "/api/tags": api.tags, "/api/ps": api.running}
    posts = {"/api/chat": api.chat, "/api/generate": api.generate, "/api/show": api.show}
    routes = [(path, handler, ["GET"]) for path, handler in gets.items()]
    routes += [(path, handler, ["POST"]) for path, handler in posts.items()]
    routes.append(("/api/{path:path}", api.refused, ["GET", "POST", "DELETE"]))
    return [
        Route("/", greeting, methods=["GET"]),
        *(Route(path, guarded(handler, ollama.error_body), methods=list(m)) for path, handler, m in routes),
    ]


async def greeting(request: Request) -> Response:
    return Response("localspec is running\n", media_type="text/plain")


async def unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}: {error.detail}"
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    problem = Problem(error.status_code, kind, kind, what)
    return answer(openai_error(problem), status=error.status_code, headers=error.headers)


async def broken(request: Request, error: Exception) -> Response:
    problem = Problem(500, "server_error", "server_error", f"localspec failed: {type(error).__name__}")
    return answer(openai_error(problem), status=500)
