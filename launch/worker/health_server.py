"""HTTP endpoint of one process: ``/livez`` and ``/readyz`` for probes of Kubernetes, ``/metrics``."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pslib.errors import ConfigurationError
from pslib.monitor.prometheus import CONTENT_TYPE, Exposition
from pslib.process.health import Health, health
from pslib.process.listening import listening_socket
from pslib.process.reported import Reported, reported

TEXT = "text/plain; charset=utf-8"


def serve_health(
    port: int,
    of: Health = health,
    host: str = "",
    what: str = "--health",
    counters: Reported = reported,
) -> ThreadingHTTPServer:
    """Answer in a thread of its own, until the process ends or the result is shut down.

    ``/livez`` has status 200 while all loops of the process turn, ``/readyz`` when it also serves; else 503
    with the reason. A stopped process answers nothing, which probes take for a failure too. ``/metrics`` are
    the counters of the last heartbeat, for Prometheus.

    Parameters
    ----------
    port : int
        0 is any free one.
    of : Health
    host : str
        Address to listen at, unencrypted. Empty: all of this machine, since a probe comes from its node.
    what : str
        Source of the port, for the error.
    counters : Reported

    Raises
    ------
    ConfigurationError
        When the port is taken.
    """
    exposition = Exposition(counters)

    class Answer(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            """Answer one probe or scrape."""
            if self.path == "/metrics":
                self._send(200, CONTENT_TYPE, exposition.text())
                return
            stuck = of.stuck()
            waits = f"waits for {of.waits_for}" if of.waits_for else ""
            why = {"/livez": stuck, "/readyz": stuck or waits}.get(self.path)
            status = 404 if why is None else 503 if why else 200
            text = "expected /livez, /readyz or /metrics" if why is None else why or "ok"
            self._send(status, TEXT, text.encode() + b"\n")

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each."""

    server = ThreadingHTTPServer(("", port), Answer, bind_and_activate=False)
    server.server_close()  # its socket would be one of IPv4
    try:
        server.socket = listening_socket(host, port)
    except OSError as error:
        raise ConfigurationError(f"{what}: port {port} can't be taken: {error.strerror}") from error
    server.server_address = server.socket.getsockname()[:2]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pslib-health", daemon=True).start()
    return server


def serve_metrics(listen: str) -> str:
    """Serve at the host and port of an address ``tcp://host:port``; return ``host:port``.

    Parameters
    ----------
    listen : str
        Port 0 is any free one.

    Raises
    ------
    ConfigurationError
        When the port is taken.
    """
    host, _, port = listen.removeprefix("tcp://").rpartition(":")
    server = serve_health(int(port), host=host.strip("[]"), what="metrics.port")
    return f"{host}:{server.server_address[1]}"
