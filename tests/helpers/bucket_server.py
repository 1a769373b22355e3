"""Server of Google Cloud Storage's protocol on this machine, with preconditions and faults.

An emulator (`gcp_storage_emulator`) stores the objects. It ignores preconditions and sends no
generations, so a proxy before it adds both. The proxy also makes the faults: it answers with an
error, does not answer for a while, or closes all connections.
"""

import contextlib
import http.client
import http.server
import itertools
import json
import os
import random
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from gcp_storage_emulator.server import create_server
from gcp_storage_emulator.storage import Storage

_OBJECT = re.compile(r"/storage/v1/b/([^/]+)/o/([^/?]+)$")
_UPLOAD = re.compile(r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o$")
_COPY = re.compile(r"/storage/v1/b/[^/]+/o/[^/]+/(?:copyTo|rewriteTo)/b/([^/]+)/o/([^/?]+)$")
_HOP = {"transfer-encoding", "connection", "content-length", "x-goog-generation"}


class BucketServer:
    """Emulator and proxy; `address` is that of the proxy."""

    def __init__(self, bucket: str = "bucket"):
        # It would write the descriptions of all its objects with every change, for a later start.
        Storage._write_config_to_file = lambda storage: None
        self._storage_port, self.port = _free_port(), _free_port()
        self._storage = create_server(
            "localhost", self._storage_port, in_memory=True, default_bucket=bucket
        )
        self._storage.start()
        self.generations: dict[tuple[str, str], int] = {}
        self.counter = itertools.count(1)
        self.guard = threading.RLock()
        self.requests: list[str] = []
        self.hook: Callable[[str], None] = lambda request: None  # called with every request
        self.failures: list[int] = []
        self.silent_until = 0.0
        self._proxy: http.server.ThreadingHTTPServer | None = None
        self.connections: set[socket.socket] = set()
        self.start()

    @property
    def address(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process whose gs:// is this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.address,
            "TENSORSTORE_GCS_HTTP_URL": self.address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            # gcsfs would ask a service that is not here about the kind of the bucket.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def start(self) -> None:
        """Listens; also after `stop`."""
        handler = type("Handler", (_Handler,), {"owner": self})
        self._proxy = _Server(("localhost", self.port), handler)
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Closes all connections and refuses new ones; the objects stay."""
        assert self._proxy is not None
        self._proxy.shutdown()
        self._proxy.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stops the proxy and the emulator."""
        self.stop()
        self._storage.stop()

    def fail(self, count: int, status: int) -> None:
        """Answers the next requests with an error status."""
        self.failures += [status] * count

    def be_silent(self, seconds: float) -> None:
        """Answers no request for a while."""
        self.silent_until = time.monotonic() + seconds

    def forward(self, method: str, url: str, headers: dict[str, str], body: bytes):
        """Passes a request on to the emulator; returns status, headers and body."""
        connection = http.client.HTTPConnection("localhost", self._storage_port)
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints the error, unless a client was killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16  # one packet an answer: the second would wait for an acknowledgement
    disable_nagle_algorithm = True
    owner: BucketServer

    def setup(self) -> None:
        super().setup()
        self.owner.connections.add(self.connection)

    def finish(self) -> None:
        self.owner.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._read_chunks())
        owner = self.owner
        while time.monotonic() < owner.silent_until:
            time.sleep(0.05)
        owner.requests.append(f"{self.command} {self.path}")
        owner.hook(owner.requests[-1])
        with owner.guard:
            if owner.failures:
                self._answer(owner.failures.pop(0), {}, b'{"error": {"message": "injected"}}')
                return
            self._answer(*self._store(body))

    def _store(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url = urllib.parse.urlparse(self.path)
        if "/moveTo/" in url.path:  # the emulator has none, and gcsfs then copies and deletes
            return 400, {}, b'{"error": {"code": 400, "message": "not here"}}'
        query = urllib.parse.parse_qs(url.query)
        key = self._key(url.path, query, body)
        generations = self.owner.generations
        current = generations.get(key, 0) if key else 0
        if key:
            wanted = query.get("ifGenerationMatch")
            if wanted and int(wanted[0]) != current:
                return 412, {}, b'{"error": {"code": 412, "message": "generation differs"}}'
            unwanted = query.get("ifGenerationNotMatch")
            if unwanted and int(unwanted[0]) == current:
                return 304, {}, b""
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        status, answer, content = self.owner.forward(self.command, self.path, headers, body)
        if key and status < 300:
            is_write = self.command in ("POST", "PUT")
            if self.command == "DELETE":
                generations.pop(key, None)
            elif is_write and not (content == b"" and "upload_id" in str(answer)):
                current = generations[key] = next(self.owner.counter)
            answer["x-goog-generation"] = str(current)
            if answer.get("Content-Type", answer.get("Content-type", "")).startswith(
                "application/json"
            ) and (is_write or "alt" not in query):
                with contextlib.suppress(ValueError):
                    resource = json.loads(content)
                    if "generation" in resource:
                        resource["generation"] = str(current)
                        content = json.dumps(resource).encode()
        return status, answer, content

    def _key(self, path: str, query: dict, body: bytes) -> tuple[str, str] | None:
        if match := _COPY.match(path) or _OBJECT.match(path):
            return match[1], urllib.parse.unquote(match[2])
        if match := _UPLOAD.match(path):
            if "name" in query:
                return match[1], query["name"][0]
            if name := re.search(rb'"name": ?"([^"]+)"', body[:2000]):
                return match[1], name[1].decode()
        return None

    def _read_chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP - {"x-goog-generation"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _serve


def _free_port() -> int:
    """A port below those of outgoing connections, one of which could take that of a stopped server.

    A client on this machine can even connect to itself, if its own port is that of the server.
    """
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("localhost", random.SystemRandom().randrange(20_000, 32_000)))
            return listener.getsockname()[1]


if __name__ == "__main__":
    server = BucketServer()
    print(" ".join(f"{name}={value}" for name, value in server.environment.items()), flush=True)
    os.read(0, 1)
