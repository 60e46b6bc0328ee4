"""Follower of a training cluster: asks its servers for changes, and gives a model its next version."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pslib.checkpoint.manifest import Manifest
from pslib.client.following import Following
from pslib.clock import Clock
from pslib.cluster import Watcher, watch
from pslib.errors import PslibError, RemoteProtocolError, UnavailableError
from pslib.monitor.run_folder import cluster_at
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.serving.settings import ServeSettings
from pslib.table.tables import TableSpec
from pslib.text import counted
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.wire.messages import Changed

ASK_S = 3.0
"""Patience for one answer; the first copy of a server is thousands of them."""
START_S = 30.0
"""Patience for the first version while tries fail: servers may be on their way."""
AGAIN_S = 0.1
"""Pause after a round in which a unit was at no server: it is between two."""

_log = logging.getLogger(__name__)


class Follower:
    """Thread that asks a cluster's servers for what has changed, and applies it, a version at a time.

    Parameters
    ----------
    where : str
        Folder of the run: it says where the coordinator is, also after the run was started again.
    keys : str or None
        Key file of an encrypted cluster.
    settings : ServeSettings
    clock : Clock
    tell : callable
        Gets lines for people: that the cluster does not answer, and that it does again.

    Attributes
    ----------
    parameters : FollowedParameters or None
        None before `open`.
    rows, bytes, failures : int
        Rows and bytes that have come, and rounds that have failed.

    Raises
    ------
    ConfigurationError
        If the folder is not that of a run.
    UnavailableError
        If its coordinator does not answer.
    """

    def __init__(
        self,
        where: str,
        keys: str | None,
        settings: ServeSettings,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._where, self._keys, self._settings = where, keys, settings
        self._clock, self._tell = clock, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pslib-follower", daemon=True)
        self._cluster: tuple[str, str] = ("", "")
        self._watcher: Watcher | None = None
        self._addresses: list[str] = []
        self._shape: tuple[int, int] | None = None
        self._following: Following | None = None
        self._problem = ""
        self.parameters: FollowedParameters | None = None
        self.rows = self.bytes = self.failures = 0
        try:
            self._find_servers()
        except BaseException:
            self.close()
            raise

    def open(
        self, path: str, manifest: Manifest, table: TableSpec, layout: DenseLayout
    ) -> FollowedParameters:
        """Return the parameters of a model that follows; they are empty until `start`."""
        assert self._shape is not None
        bits, blocks = self._shape
        self.parameters = FollowedParameters(table, layout, bits)
        self._following = Following(
            table.name, table.dim, layout.length, 1 << bits, blocks, self._settings.follow_rows_as
        )
        return self.parameters

    def start(self) -> None:
        """Read the first version, then follow in a thread.

        Raises
        ------
        PslibError
            If there is no version within 30 s.
        """
        until_s = self._clock.now_s() + START_S
        while True:
            try:
                if self._play_round():
                    break
                problem: PslibError = UnavailableError(
                    f"{self._where}: expected each partition at a server, got some at none; start pslib "
                    "serve again when its servers are back"
                )
            except PslibError as error:  # such as a table that trainers of a resumed run have not made yet
                problem = error
            if self._clock.now_s() > until_s:
                raise problem
            self._clock.sleep_s(AGAIN_S)
        self._thread.start()

    def age_s(self, as_of_s: float) -> float:
        """Return the age of a version."""
        return max(0.0, self._clock.now_s() - as_of_s)

    def figures(self) -> dict[str, float]:
        """Return figures for metrics, by name."""
        parameters = self.parameters
        return {
            "age_seconds": 0.0 if parameters is None else self.age_s(parameters.as_of_s),
            "followed_version": 0 if parameters is None else parameters.version,
            "followed_rows": self.rows,
            "followed_bytes": self.bytes,
            "followed_failures": self.failures,
        }

    @property
    def is_fresh(self) -> bool:
        """Return True unless the model is older than ``max_age_s``."""
        most, parameters = self._settings.max_age_s, self.parameters
        return not most or parameters is None or self.age_s(parameters.as_of_s) <= most

    def stop(self) -> None:
        """Follow no more, after the round under way; the model keeps its last version."""
        self._over.set()

    def close(self) -> None:
        """Stop, and wait for the end of the thread."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._leave()

    def _leave(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher, self._cluster = None, ("", "")

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._leave()

    def _follow(self) -> None:
        wait_s = self._settings.follow_s
        while not self._over.wait(wait_s):
            began_s = self._clock.now_s()
            try:
                whole = self._play_round()
                if whole:
                    self._told("")
            except PslibError as error:
                whole = False
                self.failures += 1
                self._told(str(error))
            except Exception:  # or the model would stay as old as it is, and no one would know why
                whole = False
                self.failures += 1
                _log.exception("a round of following %s failed; the next one is tried", self._where)
            spent_s = self._clock.now_s() - began_s
            wait_s = max(0.0, self._settings.follow_s - spent_s) if whole else AGAIN_S

    def _told(self, problem: str) -> None:
        """Tell once that rounds fail, and once that they do not any more."""
        if bool(problem) != bool(self._problem):
            self._tell(
                f"{self._where}: not followed, the version before answers: {problem}"
                if problem
                else f"{self._where}: followed again"
            )
        self._problem = problem

    def _play_round(self) -> bool:
        """Ask all servers; return whether the round was whole, and its version is applied."""
        assert self._following is not None
        assert self.parameters is not None
        following, began_s = self._following, self._clock.now_s()
        if not self._addresses:
            self._find_servers()
        following.begin(self._addresses)
        while request := following.next_request():
            if self._over.is_set():
                return False
            address, message = request
            try:
                assert self._watcher is not None
                answer = self._watcher.ask(address, message, ASK_S)
                if not isinstance(answer, Changed):
                    raise RemoteProtocolError(f"{address}: expected Changed, got {answer.kind}")
                following.take(address, answer)
            except PslibError:
                following.failed(address)
                self._addresses = []
                raise
        if not following.is_complete:
            self._addresses = []
            return False
        update = following.take_update()
        self.parameters.apply(update, began_s)
        self.rows += update.rows
        self.bytes += update.bytes
        return True

    def _find_servers(self) -> None:
        """Ask the coordinator where the servers are; it may be another one than before."""
        found = cluster_at(self._where, None)
        if found != self._cluster:
            self._leave()
            self._watcher, self._cluster = watch(*found, self._keys), found
        assert self._watcher is not None
        status: dict[str, Any] = self._watcher.status(ASK_S, details=True)
        shape = int(status["partition_bits"]), int(status["dense_blocks"])
        if self._shape not in (None, shape):
            raise UnavailableError(
                f"{self._where}: its cluster has 2^{shape[0]} partitions and "
                f"{counted(shape[1], 'dense block')} now; start pslib serve again"
            )
        self._shape = shape
        servers = [one for one in status["members"] if one["role"] == "server" and one["state"] == "live"]
        self._addresses = [str(one["address"]) for one in servers if one["address"]]
        if not self._addresses:
            raise UnavailableError(f"{self._where}: its cluster has no server at present")
