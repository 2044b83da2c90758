"""A server of the page for tests: the real one, on a thread, and a small client."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress

import uvicorn

from retrace_sde.app.server import application

TOKEN = "a-token-for-tests"


class Client:
    def __init__(self, port, app):
        self.port, self.app = port, app

    @property
    def link(self):
        return f"http://127.0.0.1:{self.port}/?token={TOKEN}"

    @property
    def session(self):
        return self.app.state.site.session

    def ask(self, method, path, body=None, **headers):
        """Status, headers and content; headers are given with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        named = {key.replace("_", "-"): value for key, value in headers.items() if value}
        try:
            connection.request(method, path, body=body, headers=named)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path, token=TOKEN, **headers):
        return self.ask("GET", f"{path}?token={token}" if token else path, **headers)

    def post(self, path, body=b"", token=TOKEN, **headers):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        return self.ask("POST", path, body, X_Retrace_Token=token, **headers)

    def until(self, *stages, seconds=120):
        """The state once it is at one of some stages."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.session.state
            if state["stage"] in stages:
                return state
            time.sleep(0.05)
        raise AssertionError(f"still {self.session.state['stage']}, not {stages}")

    @contextmanager
    def held(self):
        """The process that computes stands still: what it does cannot end before it was looked at."""
        while (process := self.session._process) is None or not process.is_alive():
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # it was stopped for good
                os.kill(process.pid, signal.SIGCONT)


@contextmanager
def site(*, max_upload=1 << 20, file=None):
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app = application(token=TOKEN, port=port, max_upload=max_upload, file=file)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    app.state.site.ending = lambda: server.should_exit
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield Client(port, app)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
