"""HTTP endpoint for the probes of Kubernetes: ``/livez`` and ``/readyz`` of one process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pslib.errors import ConfigurationError
from pslib.process.health import Health, health


def serve_health(port: int, of: Health = health) -> ThreadingHTTPServer:
    """Answer probes in a thread of their own, until the process ends or the result is shut down.

    ``/livez`` has status 200 while all loops of the process turn, ``/readyz`` when it also serves; else 503
    with the reason. A stopped process answers nothing, which probes take for a failure too.

    Parameters
    ----------
    port : int
        On all addresses of this machine, unencrypted: a probe comes from its node. 0 is any free one.
    of : Health

    Raises
    ------
    ConfigurationError
        When the port is taken.
    """

    class Probe(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            """Answer one probe."""
            stuck = of.stuck()
            waits = f"waits for {of.waits_for}" if of.waits_for else ""
            why = {"/livez": stuck, "/readyz": stuck or waits}.get(self.path)
            status = 404 if why is None else 503 if why else 200
            text = ("expected /livez or /readyz" if why is None else why or "ok").encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line a probe."""

    try:
        server = ThreadingHTTPServer(("", port), Probe)
    except OSError as error:
        raise ConfigurationError(f"--health: port {port} can't be taken: {error.strerror}") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pslib-health", daemon=True).start()
    return server
