"""Models that are served, in versions: which one answers a request, and switches without a gap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pslib.checkpoint import newest, newest_of_run
from pslib.clock import Clock
from pslib.errors import ConfigurationError, PslibError
from pslib.scoring import LoadedModel
from pslib.serving.batching import Batcher
from pslib.serving.settings import ServeSettings
from pslib.storage import parent_and_name, shown

Load = Callable[[str], LoadedModel]


class UnknownModelError(ConfigurationError):
    """No model, or no version of it, has the name that a request gives."""


@dataclass(slots=True)
class Version:
    """A version of a model.

    Attributes
    ----------
    number : str
        Name in requests: the number of its checkpoint's folder, else that of its training steps.
    path : str
        Its checkpoint.
    model : LoadedModel
    batcher : Batcher
    users : int
        Requests under way that it answers.
    dropped : bool
        True if it answers no further ones; its last request ends its threads.
    """

    number: str
    path: str
    model: LoadedModel
    batcher: Batcher
    users: int = 0
    dropped: bool = False


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
    held : bool
        True after a rollback: newer versions are not taken until one is asked for.
    """

    name: str
    source: str
    current: Version
    kept: dict[str, Version] = field(default_factory=dict)
    canary: str = ""
    canary_share: float = 0.0
    held: bool = False


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

    Raises
    ------
    CheckpointError
        If a model can't be loaded.
    """

    def __init__(self, sources: Mapping[str, str], load: Load, settings: ServeSettings, clock: Clock) -> None:
        self._load, self._settings, self._clock = load, settings, clock
        self._lock = threading.Lock()
        self._draw = np.random.default_rng()
        self._models: dict[str, ServedModel] = {}
        for name, source in sources.items():
            first = self._version(newest(newest_of_run(source)))
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
                found.batcher.close()

    def _kept(self, model: ServedModel, number: str) -> Version:
        found = model.kept.get(number)
        if found is None:
            raise UnknownModelError(
                f"model {model.name!r}: expected a version of {', '.join(model.kept)}, got {number!r:.80}"
            )
        return found

    def refresh(self) -> list[str]:
        """Load newer checkpoints of all models and switch to them; return a line for each, or its failure.

        A version answers until the next one is there; requests under way end with theirs.
        """
        lines = []
        for model in list(self._models.values()):
            try:
                path = newest(newest_of_run(model.source))
                if model.held or path == model.current.path:
                    continue
                fresh = self._version(path)
            except PslibError as error:
                lines.append(
                    f"{model.name}: {shown(model.source)} was not taken, the version before answers: {error}"
                )
                continue
            self._take(model, fresh)
            lines.append(f"{model.name}: version {fresh.number} answers, {shown(path)}")
        return lines

    def load(self, name: str) -> str:
        """Load the newest checkpoint of a model at once, also after a rollback; return its version."""
        with self._lock:
            self.model(name).held = False
        for line in self.refresh():
            if line.startswith(f"{name}: ") and "was not taken" in line:
                raise ConfigurationError(line)
        return self.model(name).current.number

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
        if not 0 <= share <= 1:
            raise ConfigurationError(f"share: expected 0 to 1, got {share}")
        with self._lock:
            model = self.model(name)
            self._kept(model, number)
            model.canary, model.canary_share = (number, share) if share else ("", 0.0)

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

    def _take(self, model: ServedModel, fresh: Version) -> None:
        """Make a version the current one, and drop the oldest beyond ``keep_versions``."""
        with self._lock:
            model.kept[fresh.number] = model.current = fresh
            extra = len(model.kept) - self._settings.keep_versions
            gone = [one for one in model.kept if one not in (model.current.number, model.canary)][
                : max(0, extra)
            ]
            dropped = [model.kept.pop(number) for number in gone]
            for version in dropped:
                version.dropped = True
            idle = [version for version in dropped if not version.users]
        for version in idle:
            version.batcher.close()

    def _version(self, path: str) -> Version:
        model, settings = self._load(path), self._settings
        if model.ranks_items:
            raise ConfigurationError(
                f"{shown(path)}: {type(model.model).__name__} ranks items; expected a model that predicts "
                "clicks (pslib nearest and pslib vectors answer for it)"
            )
        batcher = Batcher(
            model.predict,
            rows_max=settings.batch_rows_max,
            waiting_rows_max=settings.waiting_rows_max,
            deadline_s=settings.deadline_s,
            threads=settings.threads,
            clock=self._clock,
        )
        return Version(_number_of(path, model), path, model, batcher)


def _number_of(path: str, model: LoadedModel) -> str:
    """Return the number that a checkpoint's folder ends with, else its steps of training."""
    tail = parent_and_name(path)[1].rpartition("-")[2]
    return str(int(tail)) if tail.isdecimal() else str(model.steps)
