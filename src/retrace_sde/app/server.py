"""The local server: 127.0.0.1 only, a token in the link, uploads of bounded size, nothing from or to the network.

Every answer about data needs the token, compared in constant time. The Host must be this server (a name that is made to point
here, DNS rebinding, is refused), what changes anything needs the token in a header, which no other site's page can send, and
an Origin that is ours. Files are served by name from a fixed list; uploads are stored under a name of our own.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrace_sde.app.examples import EXAMPLES
from retrace_sde.app.session import Session
from retrace_sde.app.work import FILES
from retrace_sde.io.files import EXTENSIONS

WATCH_SECONDS = 0.3
"""Seconds after which a watcher looks up, whether or not anything has changed."""

MAX_AHEAD = 100
"""Observations of each subject that can be forecast."""

MAX_REQUEST_BYTES = 1 << 20
"""Bytes of a request that is not an upload."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
PAGES = "sandbox allow-scripts; frame-ancestors 'self'"
"""Policy of a report inside the page: its own script, which knows nothing of the page around it."""

STATIC = {"/app.css": "text/css", "/app.js": "text/javascript"}


class Guard:
    """Refuses requests that are not for this server or not from its user, and closes the connection after every answer."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app = app
        self.token = token.encode()
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in there
                ]
            await send(message)

        refusal = self._refusal(Request(scope))
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, closed)
        else:
            await self.app(scope, receive, closed)

    def _refusal(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        if host not in self.hosts:
            return "This is not the name of this server."
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{each}" for each in self.hosts}:
            # A report in its sandbox has the origin "null": it must not ask for anything either.
            return "Another site's page asked."
        if request.url.path in STATIC:
            return None
        given = request.headers.get("x-retrace-token", "")
        if request.method in ("GET", "HEAD") and not given:
            given = request.query_params.get("token", "")
        if not hmac.compare_digest(given.encode(), self.token):
            return "The link has no valid token: use the one that `retrace app` printed."
        return None


class Site:
    """What can be asked for; `file`: a table to begin with, read where it is and never deleted."""

    session: Session

    def __init__(self, max_upload: int, file: Path | None) -> None:
        self.max_upload = max_upload
        self.file = file
        self.ending: Callable[[], bool] = lambda: False
        """Whether the server is about to end: watchers are then let go."""

    @asynccontextmanager
    async def life(self, app: Starlette) -> AsyncIterator[None]:
        """A session from the first request to the last."""
        self.session = Session()
        try:
            if self.file is not None:
                await self.session.take(self.file.absolute(), self.file.name, ours=False)
            await self.session.ready()
            yield
        finally:
            await self.session.close()

    async def page(self, request: Request) -> Response:
        """The page itself, which holds no data."""
        return Response(_static("app.html"), media_type="text/html")

    async def static(self, request: Request) -> Response:
        """Its script and its style, which begins with the report's."""
        path = request.url.path
        house = _static("report.css", "show/templates") if path.endswith(".css") else ""
        return Response(house + _static(path[1:]), media_type=STATIC[path])

    async def events(self, request: Request) -> Response:
        """The state, now and whenever it changes, as server-sent events."""
        return StreamingResponse(self._watched(), media_type="text/event-stream")

    async def _watched(self) -> AsyncIterator[str]:
        seen = -1
        while not self.ending():
            with suppress(TimeoutError):
                seen, state = await asyncio.wait_for(self.session.watch(seen), WATCH_SECONDS)
                yield f"data: {json.dumps(state, allow_nan=False)}\n\n"

    async def upload(self, request: Request) -> Response:
        """A table, stored as it comes in; over the limit, or broken off, it is deleted."""
        most, session = self.max_upload, self.session
        name = re.split(r"[/\\]", unquote(request.headers.get("x-file-name", "")))[-1][:200]
        suffix = Path(name).suffix.lower()
        if suffix not in EXTENSIONS or suffix == ".zarr":
            known = ", ".join(each for each in EXTENSIONS if each != ".zarr")
            return JSONResponse({"error": f"Files of these kinds can be read: {known}."}, 415)
        large = f"The file is larger than {most >> 20} MB: start with --max-upload for more."
        over = JSONResponse({"error": large}, 413)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            return over
        await session.forget()
        target = session.new_upload(suffix)
        size = 0
        try:
            with target.open("wb") as out:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        target.unlink(missing_ok=True)
                        return over
                    out.write(chunk)
        except ClientDisconnect:
            target.unlink(missing_ok=True)
            return Response(status_code=400)
        except OSError as error:  # a full disk; what was stored of the table must not keep it full
            target.unlink(missing_ok=True)
            text = f"The table cannot be stored: {error.strerror or error}."
            return JSONResponse({"error": text}, 507)
        await session.take(target, name, ours=True)
        return JSONResponse({})

    async def example(self, request: Request) -> Response:
        """Take one of the examples."""
        name = (await _body(request)).get("name")
        if not isinstance(name, str) or name not in EXAMPLES:
            raise ValueError("There is no such example.")
        await self.session.forget()
        path = self.session.new_upload(".csv")
        EXAMPLES[name]().to_csv(path, index=False)
        await self.session.take(path, f"{name}.csv", ours=True)
        return JSONResponse({})

    async def act(self, request: Request) -> Response:
        """Begin, or end, a computation."""
        asked, what, session = await _body(request), request.path_params["what"], self.session
        roles, options = _roles(asked.get("roles")), _options(asked.get("options"))
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "diagnose": partial(session.diagnose, roles),
            "fit": partial(session.fit, roles, options),
            "sheet": partial(session.sheet, str(asked.get("sheet"))),
            "enough": session.enough,
            "stop": session.stop,
            "forget": session.forget,
        }
        if what not in acts:
            return PlainTextResponse("There is no such thing here.", 404)
        await acts[what]()
        return JSONResponse({})

    async def download(self, request: Request) -> Response:
        """A result, by its name."""
        session = self.session
        name = request.path_params["name"]
        if name not in FILES or not (session.folder / name).is_file():
            return PlainTextResponse("There is no such file.", 404)
        seen = "view" in request.query_params and name == "report.html"
        headers = {"Content-Security-Policy": PAGES if seen else "sandbox"}
        path, kind = session.folder / name, FILES[name]
        return FileResponse(path, media_type=kind, filename=None if seen else name, headers=headers)


def application(*, token: str, port: int, max_upload: int, file: Path | None = None) -> Starlette:
    """The app behind its guard."""
    site, post = Site(max_upload, file), ["POST"]
    routes = [
        Route("/", site.page),
        *(Route(path, site.static) for path in STATIC),
        Route("/events", site.events),
        Route("/upload", site.upload, methods=post),
        Route("/example", site.example, methods=post),
        Route("/do/{what}", site.act, methods=post),
        Route("/files/{name}", site.download),
    ]
    app = Starlette(routes=routes, lifespan=site.life, exception_handlers={ValueError: _said})
    app.state.site = site
    app.add_middleware(Guard, token=token, port=port)
    return app


async def _said(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _static(name: str, folder: str = "app/static") -> str:
    return (files("retrace_sde") / folder / name).read_text(encoding="utf-8")


async def _body(request: Request) -> dict[str, Any]:
    """A small JSON object."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_REQUEST_BYTES:
            raise ValueError("The request is too large.")
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):  # nested thousands of times
        raise ValueError("The request is not JSON.") from None
    if not isinstance(found, dict):
        raise ValueError("The request is not an object.")
    return found


def _roles(given: Any) -> dict[str, Any]:
    """Names of columns by role; whether they exist the table says itself."""
    given = given if isinstance(given, dict) else {}
    single = {key: given.get(key) for key in ("subject", "slice", "time", "group")}
    several = {key: given.get(key) or [] for key in ("variables", "covariates")}
    if not all(each is None or isinstance(each, str) for each in single.values()):
        raise ValueError("A role is the name of a column.")
    if not all(isinstance(each, list) and all(isinstance(n, str) for n in each) for each in several.values()):  # fmt: skip
        raise ValueError("Variables and inputs are lists of columns.")
    return {**{key: each or None for key, each in single.items()}, **several}


def _options(given: Any) -> dict[str, Any]:
    """dt, the slices known to be first and last, whether what subjects share is removed, and the steps of the forecast."""
    given = given if isinstance(given, dict) else {}
    found: dict[str, Any] = {}
    if given.get("dt") not in (None, ""):
        try:
            found["dt"] = float(given["dt"])
        except (TypeError, ValueError):
            raise ValueError("The step is a number.") from None
        if not 0 < found["dt"] < float("inf"):
            raise ValueError("The step is a positive number.")
    if given.get("steps") not in (None, ""):
        steps = str(given["steps"])
        if not steps.isdecimal() or len(steps) > 3 or not 1 <= int(steps) <= MAX_AHEAD:
            raise ValueError(f"Observations to forecast: a whole number from 1 to {MAX_AHEAD}.")
        found["steps"] = int(steps)
    for key in ("first", "last"):
        if given.get(key):
            found[key] = str(given[key])
    if given.get("common_shocks") in ("yes", "no"):
        found["common_shocks"] = given["common_shocks"]
    if given.get("missing_covariates") in ("carry", "interpolate"):
        found["missing_covariates"] = given["missing_covariates"]
    return found
