"""Models that are served, in versions: which one answers a request, and switches without a gap."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pslib.checkpoint import manifest_bytes, newest, newest_of_run
from pslib.clock import Clock
from pslib.errors import (
    CheckpointCorruptError,
    CheckpointIncompatibleError,
    ConfigurationError,
    PslibError,
)
from pslib.scoring import LoadedModel
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.serving.batching import Batcher, Predict, Scores
from pslib.serving.follower import Follower
from pslib.serving.settings import ServeSettings
from pslib.storage import parent_and_name, shown

Load = Callable[[str], LoadedModel]
Follow = Callable[[str, str], tuple[LoadedModel, Follower]]
"""Opens the model of a checkpoint, by its source and its path, and the follower of its cluster."""


class UnknownModelError(ConfigurationError):
    """No model, or no version of it, has the name that a request gives."""


class Stamp(NamedTuple):
    """Version that made an answer, as the answer names it; ``age_s`` is None where it follows no cluster."""

    version: str
    age_s: float | None


@dataclass(slots=True)
class Version:
    """A version of a model.

    Attributes
    ----------
    number : str
        Name in requests: the number of its checkpoint's folder, else that of its training steps.
    path : str
        Its checkpoint.
    identity : str
        Its path and the digest of its manifest: a folder may be saved anew.
    model : LoadedModel
    batcher : Batcher
    follower : Follower or None
        Source of its rows, if it follows a cluster.
    users : int
        Requests under way that it answers.
    dropped : bool
        True if it answers no further ones; its last request ends its threads.
    """

    number: str
    path: str
    identity: str
    model: LoadedModel
    batcher: Batcher
    follower: Follower | None = None
    users: int = 0
    dropped: bool = False

    def stamp(self, scores: Scores) -> Stamp:
        """Return the version and the age that an answer with these scores names."""
        if self.follower is None or scores.as_of_s is None:
            return Stamp(self.number, None)
        return Stamp(f"{self.number}+{scores.version}", round(self.follower.age_s(scores.as_of_s), 3))

    def stop(self) -> None:
        """Take no more requests, and follow no more."""
        self.batcher.stop()
        if self.follower is not None:
            self.follower.stop()


@dataclass(slots=True)
class ServedModel:
    """A model under its name.

    Attributes
    ----------
    name : str
    source : str
        Checkpoint, folder of numbered ones, or folder of a run, that new versions come from.
    current : Version
        Answers requests that name no version.
    kept : dict of str to Version
        All versions that are loaded, the oldest first; ``current`` is one of them.
    canary : str
        Version that answers ``canary_share`` of the requests that name no version; empty: none.
    shadow : str
        Version that scores ``shadow_share`` of the requests too, for its metrics; empty: none.
    held : bool
        True after a rollback: newer versions are not taken until one is asked for.
    refused : str
        Identity of the newest checkpoint that could not be taken; it is not read again until `load`.
    """

    name: str
    source: str
    current: Version
    kept: dict[str, Version] = field(default_factory=dict)
    canary: str = ""
    canary_share: float = 0.0
    shadow: str = ""
    shadow_share: float = 0.0
    held: bool = False
    refused: str = ""


class Repository:
    """All models of a server; every method may be called by any thread.

    Parameters
    ----------
    sources : mapping of str to str
        Where each model comes from, by name.
    load : callable
        Opens the model of a checkpoint.
    settings : ServeSettings
    clock : Clock
    follow : callable or None
        Opens models that follow a cluster instead.

    Raises
    ------
    CheckpointError
        If a model can't be loaded.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        load: Load,
        settings: ServeSettings,
        clock: Clock,
        follow: Follow | None = None,
    ) -> None:
        self._load, self._follow, self._settings, self._clock = load, follow, settings, clock
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        """Held while a version is loaded: one at a time, for their memory."""
        self._draw = np.random.default_rng()
        self._models: dict[str, ServedModel] = {}
        for name, source in sources.items():
            path = newest(newest_of_run(source))
            first = self._version(source, path, _identity_of(path))
            self._models[name] = ServedModel(name, source, first, {first.number: first})

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return list(self._models)

    def model(self, name: str) -> ServedModel:
        """Return a model.

        Raises
        ------
        UnknownModelError
            If there is none of this name.
        """
        found = self._models.get(name)
        if found is None:
            raise UnknownModelError(f"model {name!r:.80}: expected one of {', '.join(self._models)}")
        return found

    def version(self, name: str, number: str | None = None) -> Version:
        """Return the version that answers a request: the one it names, else the current one or the canary.

        Raises
        ------
        UnknownModelError
            If there is no such model or version.
        """
        with self._lock:
            return self._chosen(name, number)

    def _chosen(self, name: str, number: str | None) -> Version:
        model = self.model(name)
        if number is not None:
            return self._kept(model, number)
        if model.canary and self._draw.random() < model.canary_share:
            return model.kept[model.canary]
        return model.current

    @contextmanager
    def using(self, name: str, number: str | None = None) -> Iterator[Version]:
        """Hold the version that answers a request, as `version` chooses it, until the block ends."""
        with self._lock:
            found = self._chosen(name, number)
            found.users += 1
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                over = found.dropped and not found.users
            if over:
                found.stop()

    def _kept(self, model: ServedModel, number: str) -> Version:
        found = model.kept.get(number) if isinstance(number, str) else None
        if found is None:
            raise UnknownModelError(
                f"model {model.name!r}: expected a version of {', '.join(model.kept)}, got {number!r:.80}"
            )
        return found

    def refresh(self) -> list[str]:
        """Load newer checkpoints of all models and switch to them; return a line for each, or its failure.

        A version answers until the next one is there; requests under way end with theirs. A checkpoint that
        can't be taken is read once.
        """
        lines = []
        for model in list(self._models.values()):
            try:
                taken = None if model.held else self._renew(model)
            except PslibError as error:
                lines.append(
                    f"{model.name}: {shown(model.source)} was not taken, the version before answers: {error}"
                )
                continue
            if taken:
                lines.append(f"{model.name}: version {taken.number} answers, {shown(taken.path)}")
        return lines

    def load(self, name: str) -> str:
        """Let the newest checkpoint of a model answer, also after a rollback; return its version.

        Raises
        ------
        UnknownModelError
            If there is no such model.
        CheckpointError
            If it can't be loaded.
        """
        model = self.model(name)
        self._renew(model, asked=True)
        return model.current.number

    def _renew(self, model: ServedModel, asked: bool = False) -> Version | None:
        """Switch to the newest checkpoint; return its version, None if it answers or was refused already."""
        with self._renewing:
            identity = ""
            try:
                path = newest(newest_of_run(model.source))
                identity = _identity_of(path)
                if not asked and identity in (model.current.identity, model.refused):
                    return None
                with self._lock:
                    known = (one for one in model.kept.values() if one.identity == identity)
                    fresh = next(known, None)
                fresh = fresh or self._version(model.source, path, identity)
            except (ConfigurationError, CheckpointCorruptError, CheckpointIncompatibleError):
                model.refused = identity  # the next reading would find the same
                raise
            return self._take(model, fresh, asked)

    def roll_back(self, name: str, number: str | None = None) -> str:
        """Let an older version answer, by default the one before the current one; return its number.

        Newer checkpoints are not taken any more until `load`.

        Raises
        ------
        UnknownModelError
            If there is no such model, or the version is not kept.
        """
        with self._lock:
            model = self.model(name)
            numbers = list(model.kept)
            if number is None:
                place = numbers.index(model.current.number)
                if place == 0:
                    raise UnknownModelError(
                        f"model {name!r}: no version before {model.current.number} is kept"
                    )
                number = numbers[place - 1]
            model.current = self._kept(model, number)
            model.held, model.canary = True, ""
            return number

    def split(self, name: str, number: str, share: float) -> None:
        """Let a kept version answer a share of the requests that name none; 0 ends it.

        Raises
        ------
        ConfigurationError
            If the share is not in 0..1.
        UnknownModelError
            If there is no such model or version.
        """
        with self._lock:
            model = self._to_share(name, number, share)
            model.canary, model.canary_share = (number, share) if share else ("", 0.0)

    def set_shadow(self, name: str, number: str, share: float) -> None:
        """Let a kept version score a share of the requests beside the one that answers; 0 ends it.

        Raises
        ------
        ConfigurationError, UnknownModelError
            As for `split`.
        """
        with self._lock:
            model = self._to_share(name, number, share)
            model.shadow, model.shadow_share = (number, share) if share else ("", 0.0)

    def shadow_of(self, name: str, version: Version) -> Version | None:
        """Return the version that scores a request too, beside the one that answers it; mostly None."""
        with self._lock:
            model = self.model(name)
            shadow = model.kept.get(model.shadow)
            if shadow is None or shadow is version or self._draw.random() >= model.shadow_share:
                return None
            return shadow

    def _to_share(self, name: str, number: str, share: float) -> ServedModel:
        if not 0 <= share <= 1:
            raise ConfigurationError(f"share: expected 0 to 1, got {share}")
        model = self.model(name)
        self._kept(model, number)
        return model

    def describe(self) -> list[dict[str, Any]]:
        """Return name, version and state of all kept versions, as the model repository extension has them."""
        with self._lock:
            return [
                {"name": model.name, "version": number, "state": "READY", "reason": ""}
                for model in self._models.values()
                for number in model.kept
            ]

    def close(self) -> None:
        """Answer what waits, and end all threads."""
        for model in self._models.values():
            for version in model.kept.values():
                version.batcher.close()
                if version.follower is not None:
                    version.follower.close()

    def _take(self, model: ServedModel, fresh: Version, asked: bool) -> Version | None:
        """Make a version the current one, and drop the oldest beyond ``keep_versions``.

        None if there was a rollback meanwhile.
        """
        with self._lock:
            if model.held and not asked:
                dropped = [] if fresh.number in model.kept else [fresh]
            else:
                replaced = model.kept.pop(fresh.number, fresh)
                dropped = [] if replaced is fresh else [replaced]
                model.kept[fresh.number] = model.current = fresh
                model.held = False
                extra = len(model.kept) - self._settings.keep_versions
                others = [one for one in model.kept if one not in (fresh.number, model.canary, model.shadow)]
                dropped += [model.kept.pop(number) for number in others[: max(0, extra)]]
            for version in dropped:
                version.dropped = True
            idle = [version for version in dropped if not version.users]
        for version in idle:
            version.stop()
        return None if fresh.dropped else fresh

    @property
    def is_fresh(self) -> bool:
        """Return True unless the current version of a model is older than ``max_age_s``."""
        followers = [model.current.follower for model in self._models.values()]
        return all(one is None or one.is_fresh for one in followers)

    def _version(self, source: str, path: str, identity: str) -> Version:
        follower: Follower | None = None
        if self._follow is None:
            model = self._load(path)
        else:
            model, follower = self._follow(source, path)
        try:
            return self._version_of(model, follower, path, identity)
        except BaseException:
            if follower is not None:
                follower.close()
            raise

    def _version_of(self, model: LoadedModel, follower: Follower | None, path: str, identity: str) -> Version:
        settings = self._settings
        if model.ranks_items:
            raise ConfigurationError(
                f"{shown(path)}: {type(model.model).__name__} ranks items; expected a model that predicts "
                "clicks (pslib nearest and pslib vectors answer for it)"
            )
        if follower is not None:
            follower.start()
        batcher = Batcher(
            _scorer_of(model),
            rows_max=settings.batch_rows_max,
            waiting_rows_max=settings.waiting_rows_max,
            deadline_s=settings.deadline_s,
            threads=settings.threads,
            clock=self._clock,
        )
        return Version(number_of(path, model), path, identity, model, batcher, follower)


def _scorer_of(model: LoadedModel) -> Predict:
    """Return the function that scores a table; of followed parameters, with one version of them."""
    parameters = model.parameters

    def score(table: pa.Table) -> Scores:
        if not isinstance(parameters, FollowedParameters):
            return Scores(model.predict(table))
        with parameters.reading():
            return Scores(model.predict(table), parameters.version, parameters.as_of_s)

    return score


def number_of(path: str, model: LoadedModel) -> str:
    """Return the number that a checkpoint's folder ends with, else its steps of training."""
    tail = parent_and_name(path)[1].rpartition("-")[2]
    return str(int(tail)) if tail.isdecimal() else str(model.steps)


def _identity_of(path: str) -> str:
    """Return a text that differs between checkpoints, also of one folder saved twice in a second."""
    return f"{path} of {hashlib.sha256(manifest_bytes(path)).hexdigest()}"
