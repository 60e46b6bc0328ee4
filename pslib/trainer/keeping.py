"""What a trainer does to keep a training: save it, load it, and know where it stands."""

from __future__ import annotations

from collections.abc import Sequence

from pslib.arguments import checked
from pslib.cluster import Cluster
from pslib.data.column_types import KeyKinds
from pslib.trainer.calls import Calls, collective
from pslib.trainer.cuts import TrainerCuts
from pslib.trainer.modes import TrainingMode
from pslib.trainer.retrieval import PathTo
from pslib.trainer.saving import CheckpointJobs, Position
from pslib.trainer.settings import TrainerSettings

__all__ = ["Keeping"]


class Keeping:
    """The part of a `Trainer` that saves and loads; every method is called by all trainers alike."""

    cluster: Cluster
    settings: TrainerSettings
    _calls: Calls
    _checkpoints: CheckpointJobs
    _cuts: TrainerCuts
    _mode: TrainingMode
    _epochs: int
    _steps: int
    _seconds: float
    _in_step: bool
    _files: list[str]
    _by_files: bool
    _key_kinds: KeyKinds

    @checked()
    @collective
    def save(self, path: PathTo, *, keep_last: int = 0, space_s: float = 0.0) -> str:
        """Write a checkpoint: every server its files, then the manifest; return its path.

        One trainer does it while the others wait. What was at ``path`` is replaced at the last moment.

        Parameters
        ----------
        path : path or URI
            A folder that all servers reach: local, ``s3://``, ``gs://`` or ``hdfs://``.
        keep_last : int
            0: the checkpoint is ``path``. Else it is a new folder ``checkpoint-N`` in ``path``, and when it
            is complete, all but the newest ``keep_last`` complete ones there are removed.
        space_s : float
            How long to try again, and say so, where there is no space for it; 0: not at all.

        Raises
        ------
        CheckpointError
            When the place can't be written by the servers.
        CheckpointFullError
            When there is no space for it.
        """
        return self._checkpoints.save(path, keep_last, self._position, space_s)

    def save_as_it_is(self) -> None:
        """After an error in a call, and before this trainer leaves: save what is trained, as for SIGTERM.

        Nothing where no ``checkpoint`` was set, within a fit of ``sync``, whose step the others can't end
        alone, or when it can't be done in `pslib.config.Timing.drain_s`.
        """
        if self.settings.checkpoint and not self._in_step:
            self._cuts.save_as_it_is()

    @checked()
    @collective
    def load(
        self,
        path: PathTo,
        *,
        state: bool = True,
        tables: Sequence[str] | None = None,
        resume: bool = True,
        other_model: bool = False,
    ) -> None:
        """Replace all rows and dense parameters by those of a checkpoint, made on any number of servers.

        Parameters
        ----------
        path : path or URI
            A checkpoint, or a folder of numbered ones, of which the newest is taken.
        state : bool
            False is a warm start: weights come with fresh optimizer state, so that optimizers may be others
            than the checkpoint's, and the training begins at step 0.
        tables : sequence of str or None
            Rows of these tables only: dense parameters, other tables and the position in the training stay as
            they are. None loads everything.
        resume : bool
            Whether a script whose `fit` was saved while it went on goes on exactly: calls that were done are
            passed over, and of the one that was under way every example counts once. One that begins with
            `evaluate` or the like, where that one trained, may look at it and nothing more. False: all is
            new.
        other_model : bool
            Whether to go on with what a model of another class, with other columns, or with parameters of
            other names has learned, where the numbers fit. False: that is refused, as it mostly is a slip;
            so is data later whose keys are made of numbers where the checkpoint's were made of texts, or the
            other way round.

        Raises
        ------
        CheckpointError
            When there is none, it is damaged, its rows or dense parameters do not fit this model, or another
            model has learned them.
        ConfigurationError
            When ``tables`` names one that this model does not have; or when another load was left before it
            was done, as another trainer may be at it: call that again first.
        """
        position = self._checkpoints.load(path, state, tables, self._position, resume, other_model)
        if position is not None:
            self._stand_at(position)
        if self._checkpoints.replaces_rows(tables):  # in place: a stream that goes on has it, too
            self._key_kinds.clear()
            self._key_kinds.update(self._checkpoints.kinds)
        self._mode.loaded(trained=position is not None and state)

    def _stand_at(self, position: Position) -> None:
        self._epochs, self._steps, self._seconds = position.epochs, position.steps, position.seconds
        self._files[:], self._by_files = position.files, bool(position.files)

    def _look(self) -> None:
        """Before a call that only looks: a script that begins with it stands where its checkpoint does."""
        if self._calls.leave():
            self._stand_at(self._checkpoints.saved)

    @property
    def _position(self) -> Position:
        return Position(self._epochs, self._steps, self._seconds, tuple(self._files))
