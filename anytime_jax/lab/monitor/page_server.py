"""Server of pages on the loopback interface, for a browser of this machine."""

import errno
import http.server
import socketserver
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from anytime_jax.commands import standard_streams
from anytime_jax.errors import InputError

ADDRESS = "127.0.0.1"
_HOSTS = (ADDRESS, "localhost")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(http.server.ThreadingHTTPServer):
    """Server that answers GET with what a function returns for the name, and nothing else.

    It reads no file. Requests of a page of another site are refused: a name that it lets point to
    this machine (DNS rebinding) is not that of the server.
    """

    daemon_threads = True

    def __init__(
        self,
        port: int,
        read: Callable[[str], tuple[str, bytes] | None],
        headers: Mapping[str, str],
    ):
        """Listens on a port, 0 for any free one.

        Args:
          port: its number.
          read: returns media type and content of a name, None for an unknown one; called by
            several threads.
          headers: of every answer.

        Raises:
          InputError: if the port is in use or reserved.
        """
        self.read = read
        self.headers = {**_HEADERS, **headers}
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            problem = "is in use" if error.errno == errno.EADDRINUSE else f"fails ({error})"
            raise InputError(f"--port={port} {problem}: choose another, or 0 for any") from error

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def server_bind(self) -> None:
        """Binds the address without looking its name up."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints a line about an error, unless the browser has gone."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            standard_streams.print_error(f"a request failed: {type(error).__name__}: {error}")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "anytime_jax", ""
    timeout = 10  # seconds in which a browser sends its request

    def do_GET(self) -> None:
        """Answers a request."""
        if not _is_own(self.headers.get("Host", "")):
            self._send(403, "text/plain", f"only for {' and '.join(_HOSTS)}\n".encode())
            return
        try:
            content = self.server.read(self.path.partition("?")[0].removeprefix("/"))
        except Exception as error:  # such as of a run that was removed
            self._send(503, "text/plain; charset=utf-8", f"{error}\n".encode())
            return
        if content is None:
            self._send(404, "text/plain", b"there is no such page\n")
        else:
            self._send(200, *content)

    def end_headers(self) -> None:
        """Adds the headers of every answer, errors included."""
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Prints no line for a request."""

    def _send(self, status: int, media_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _is_own(host: str) -> bool:
    """Whether a Host header names this machine; a tunnel may have another port."""
    try:
        return urlsplit(f"//{host}").hostname in _HOSTS
    except ValueError:
        return False
