"""The page server: what it answers, and whom; errors and browsers that have gone."""

import contextlib
import http.client
import socket
import threading

import pytest

from anytime_jax.errors import InputError
from anytime_jax.lab.monitor.page_server import PageServer

HEADERS = {"Content-Security-Policy": "default-src 'none'"}


def read(name):
    if name == "broken":
        raise InputError("the run has gone")
    return ("text/plain", b"hello") if name == "" else None


@contextlib.contextmanager
def serving(read=read):
    with PageServer(0, read, HEADERS) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module", name="server")
def server_fixture():
    with serving() as server:
        yield server


def request(server, path="/", host="127.0.0.1", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.putrequest(method, path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    return response, response.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:9000", "127.0.0.1:1"])
def test_page_is_for_this_machine_by_any_port(server, host):
    response, content = request(server, "/?anything", host)
    assert (response.status, content) == (200, b"hello")
    assert response.headers["Content-Security-Policy"] == "default-src 'none'"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"
    assert "Python" not in response.headers["Server"]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[", "", None]
)
def test_other_hosts_are_refused(server, host):
    response, content = request(server, "/", host)
    assert response.status == 403
    assert b"hello" not in content


@pytest.mark.parametrize(
    "path", ["/run.json", "/../run.json", "/%2e%2e/run.json", "http://127.0.0.1/", "/etc/"]
)
def test_unknown_names_are_not_found(server, path):
    assert request(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(server, method):
    assert request(server, method=method)[0].status == 501


def test_failure_is_one_line_with_a_status(server):
    response, content = request(server, "/broken")
    assert (response.status, content) == (503, b"the run has gone\n")


def test_browser_that_disconnects_prints_nothing(capfd):
    asked, gone = threading.Event(), threading.Event()

    def wait(name):
        asked.set()
        gone.wait(5)
        return "text/plain", bytes(10**7)

    with serving(wait) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asked.wait(5)
        socket.create_connection(("127.0.0.1", server.server_port)).close()
        gone.set()
        request(server)
    assert capfd.readouterr() == ("", "")


def test_silent_connection_does_not_keep_others_waiting(server):
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert request(server)[0].status == 200


def test_port_in_use_is_bad_input(server):
    with pytest.raises(InputError, match=f"--port={server.server_port} is in use"):
        PageServer(server.server_port, read, {})


def test_server_listens_on_the_loopback_interface_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"
