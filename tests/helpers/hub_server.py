"""Local server that speaks the protocol of the Hugging Face hub, and serves plain files too.

Listings come in pages, files by a redirect to another path, in ranges, and with faults on request.
"""

import contextlib
import dataclasses
import json
import threading
import types
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from huggingface_hub.utils import _http

from anytime_jax.storage import url_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAGE_FILES = 3


@dataclasses.dataclass
class Hub:
    """A server on a folder whose files are those of every repository.

    Attributes:
      url: its address, for HF_ENDPOINT; files are also at `url/files/` (`files_whole/`: without
        ranges).
      requests: method and path of each request.
      faults: what happens to the next transfers: a status, or "cut"; None for nothing.
    """

    folder: Path
    url: str = ""
    requests: list = dataclasses.field(default_factory=list)
    faults: list = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def serve(folder):
    """Serves a folder until the end of the block."""
    hub = Hub(Path(folder))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def reply(self, status, content=b"", **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(content), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def reply_json(self, value, **headers):
            self.reply(200, json.dumps(value).encode(), Content_Type="application/json", **headers)

        def describe(self, path):
            name = str(path.relative_to(hub.folder))
            if path.is_dir():
                return {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
            size = path.stat().st_size
            return {"type": "file", "path": name, "oid": "1" * 40, "size": size}

        def list_tree(self, name, query):
            root = hub.folder / name
            if not root.exists():
                self.reply(404, b"{}", X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
                return
            recursive = query.get("recursive", ["false"])[0].lower() == "true"
            paths = sorted(root.rglob("*") if recursive else root.iterdir())
            start = int(query.get("cursor", ["0"])[0])
            page, headers = paths[start : start + PAGE_FILES], {}
            if start + PAGE_FILES < len(paths):
                path = self.path.partition("?")[0]
                following = {"recursive": recursive, "cursor": start + PAGE_FILES}
                link = f"{hub.url}{path}?{urllib.parse.urlencode(following)}"
                headers["Link"] = f'<{link}>; rel="next"'
            self.reply_json([self.describe(path) for path in page], **headers)

        def send_file(self, name, ranges=True):
            path = hub.folder / name
            if path.is_dir():  # the page of links that many servers make
                links = (f'<a href="{x.name}">{x.name}</a>\n' for x in sorted(path.iterdir()))
                self.reply(200, "".join(links).encode(), Content_Type="text/html")
                return
            if not path.is_file():
                self.reply(404)
                return
            fault = hub.faults.pop(0) if hub.faults and self.command == "GET" else None
            if fault in ("404", "500"):
                self.reply(int(fault))
                return
            content, status = path.read_bytes(), 200
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{"1" * 40}"'}
            wanted = self.headers.get("Range")
            if ranges:
                headers["Accept-Ranges"] = "bytes"
            if wanted and ranges:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                total, first = len(content), int(first)
                last = min(int(last or total - 1), total - 1)
                content, status = content[first : last + 1], 206
                headers["Content-Range"] = f"bytes {first}-{last}/{total}"
            self.send_response(status)
            for key, value in {"Content-Length": len(content), **headers}.items():
                self.send_header(key, str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
                self.wfile.flush()
            if fault == "cut":
                self.close_connection = True

        def answer(self):
            url = urllib.parse.urlsplit(self.path)
            path, query = urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query)
            hub.requests.append(f"{self.command} {path}")
            match path.strip("/").split("/"):
                case ["api", _, "nobody", *_] | ["datasets" | "models", "nobody", *_]:
                    self.reply(401, X_Error_Code="RepoNotFound")
                case ["api", _, _, _] | ["api", _, _, _, "revision", _]:
                    self.reply_json({"id": "owner/name", "sha": COMMIT, "siblings": []})
                case ["api", _, _, _, "tree", _, *name]:
                    self.list_tree("/".join(name), query)
                case ["api", _, _, _, "paths-info", _]:
                    body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                    names = urllib.parse.parse_qs(body).get("paths") or json.loads(body)["paths"]
                    paths = [hub.folder / name for name in names]
                    self.reply_json([self.describe(path) for path in paths if path.exists()])
                case ["datasets", _, _, "resolve", _, *name] | [_, _, "resolve", _, *name]:
                    place = f"{hub.url}/cdn/{'/'.join(name)}"
                    status = 302 if (hub.folder / "/".join(name)).exists() else 404
                    self.reply(status, Location=place, X_Repo_Commit=COMMIT)
                case ["cdn" | "files", *name]:
                    self.send_file("/".join(name))
                case ["files_whole", *name]:
                    self.send_file("/".join(name), ranges=False)
                case _:
                    self.reply(404)

        do_GET = do_HEAD = do_POST = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


@contextlib.contextmanager
def local_hub(folder):
    """Serves a folder as the hub of this process, whose requests are repeated without waits."""
    with serve(folder) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr(url_files, "_BLOCK_BYTES", 2**16)
        patch.setattr(url_files, "_LISTING_WAITS", (0.01, 0.01))
        patch.setattr(url_files, "_READING_WAITS", (0.01,) * 3)
        patch.setattr(_http, "time", types.SimpleNamespace(sleep=lambda seconds: None))
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url})
        _forget()
        yield hub
    _forget()


def _forget():
    url_files._open_file_system.cache_clear()
    for protocol in ("hf", "http"):
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
