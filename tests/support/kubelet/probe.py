"""Probes of a container by HTTP: startup, then readiness and liveness, in a thread."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

__all__ = ["Prober"]

PERIOD_S, TIMEOUT_S, FAILURES = 10.0, 1.0, 3
"""Values of Kubernetes where a probe names none."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Probe:
    """One kind of probe: its settings, its next time, its failures in a row."""

    def __init__(
        self, settings: Mapping[str, Any], address: str, ports: Mapping[str, int], pace: float
    ) -> None:
        request = settings["httpGet"]
        port = ports.get(request["port"], request["port"])
        self._url = f"http://{address}:{port}{request['path']}"
        self.period_s = settings.get("periodSeconds", PERIOD_S) * pace
        self._timeout_s = settings.get("timeoutSeconds", TIMEOUT_S)
        self._failures_max = settings.get("failureThreshold", FAILURES)
        self._failures = 0
        self.due_s = 0.0

    def try_once(self) -> bool:
        """Ask; return whether the answer was good."""
        self.due_s = time.monotonic() + self.period_s
        try:
            with _DIRECT.open(self._url, timeout=self._timeout_s) as answer:
                good = 200 <= answer.status < 400
        except OSError:  # no answer, or an HTTP status from 400 on
            good = False
        self._failures = 0 if good else self._failures + 1
        return good

    @property
    def failed(self) -> bool:
        """Return whether it has failed as often as its settings allow."""
        return self._failures >= self._failures_max


class Prober:
    """Probes of one run of a container.

    Parameters
    ----------
    container : mapping
        Of a manifest.
    address : str
        Of the pod.
    pace : float
        Factor on the periods.

    Attributes
    ----------
    ready : bool
    failed : str
        Probe for which the container must be started again; empty: none.
    """

    def __init__(self, container: Mapping[str, Any], address: str, pace: float) -> None:
        ports = {one["name"]: one["containerPort"] for one in container.get("ports", ()) if "name" in one}
        self._probes = {
            kind: _Probe(container[f"{kind}Probe"], address, ports, pace)
            for kind in ("startup", "readiness", "liveness")
            if f"{kind}Probe" in container
        }
        self.started = "startup" not in self._probes
        self.ready = self.started and "readiness" not in self._probes
        self.failed = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a probe that is under way ends by itself."""
        self._stopped.set()
        self.ready = False

    def _run(self) -> None:
        while self._probes and not self.failed:
            kinds = ("readiness", "liveness") if self.started else ("startup",)
            probes = {kind: self._probes[kind] for kind in kinds if kind in self._probes}
            if not probes:
                return
            kind, probe = min(probes.items(), key=lambda item: item[1].due_s)
            if self._stopped.wait(max(0.0, probe.due_s - time.monotonic())):
                return
            self._note(kind, probe, probe.try_once())

    def _note(self, kind: str, probe: _Probe, good: bool) -> None:
        if kind == "startup":
            self.started = good
            self.ready = good and "readiness" not in self._probes
        elif kind == "readiness":
            self.ready = (good or (self.ready and not probe.failed)) and not self._stopped.is_set()
        if kind != "readiness" and probe.failed:
            self.failed = kind
