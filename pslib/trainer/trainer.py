"""Trainer: fit, evaluate, save and load a model on a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pslib.client.calls import PushName
from pslib.client.pending import PendingPush
from pslib.cluster import Cluster
from pslib.data.arrow_data import Data, lasting, open_data, paths_in
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.data.split import TrainedRows
from pslib.errors import PreemptedError
from pslib.metrics.metrics import EvalResult
from pslib.metrics.ranking import RankResult
from pslib.process.interruption import Interruption
from pslib.recorder.history import History
from pslib.settings import settings_as_keywords
from pslib.storage import place_of
from pslib.table.tables import DenseSpec
from pslib.text import counted
from pslib.trainer.call_log import Calls, collective, repeatable
from pslib.trainer.callbacks import Callbacks
from pslib.trainer.checkpoints.pause import CheckpointPause
from pslib.trainer.checkpoints.save_load import CheckpointJobs, Position, set_up
from pslib.trainer.collective import HeldLease, Job, spec_of
from pslib.trainer.consistency.modes import JobPlan, TrainingMode, plan_of
from pslib.trainer.evaluation.batch_norm_stats import StatisticsJobs
from pslib.trainer.evaluation.early_stopping import (
    EarlyStopping,
    Result,
    check_epochs,
    check_stopping,
    followed,
    place_of_metric,
)
from pslib.trainer.evaluation.predictions import PredictionFiles
from pslib.trainer.evaluation.scoring import Scorer, check_label, data_of, said_of, task_of
from pslib.trainer.fit import Fit, FitTools
from pslib.trainer.model import TrainableModel, dense_shapes_of, own_table_of, with_row_optimizers
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.pipeline.pace import LeasePlan
from pslib.trainer.progress import Progress
from pslib.trainer.retrieval.retrieval import PathTo, Retrieval
from pslib.trainer.retrieval.towers import ranks_items, sides_of
from pslib.trainer.run_records import check_out, record
from pslib.trainer.settings import LoadSettings, RankingSettings, TrainerSettings, check_fits, table_of
from pslib.trainer.streaming import StreamWindow, WindowJobs, windows
from pslib.trainer.training_history import TrainingHistory
from pslib.trainer.vote import voted
from pslib.validation import checked, checked_calls

log = logging.getLogger(__name__)
NO_STREAM_SETTINGS = StreamSettings()
CALLS = {"eval": "evaluate", "test": "evaluate", "score": "evaluate", "train": "fit"}
"""Calls by their names on the command line and in other libraries."""
EPOCHS_A_JOB = 64
"""A job lists its leases before the first one is given out: a million epochs must not keep all waiting."""


@checked_calls("fit", "fit_stream", "evaluate")
class Trainer:
    """Training, evaluation and ranking of one model on a cluster; all trainers make the same calls.

    Parameters
    ----------
    model : TrainableModel
        For instance one of `rec_models`.
    cluster : Cluster
        From `pslib.connect`. It holds one model, which its trainers share.
    **settings
        Fields of `pslib.trainer.settings.TrainerSettings`, by keyword.

    Raises
    ------
    ConfigurationError
        If a setting is out of range, ``out`` can't be written to, or the servers have another model's tables;
        unless it may ``share``, also if ``cluster`` has a Trainer.
    TypeError
        If there is no such setting.

    Notes
    -----
    The staleness of a batch is the number of this trainer's own earlier batches that were not applied when
    its pull began (with geo: that were not sent). Pushes of other trainers between a pull and its push are
    counted apart (`pslib.wire.staleness.StalenessCounter`), and `TrainingSettings.damping` ignores them; with
    sync nothing is damped.
    """

    @settings_as_keywords(TrainerSettings)
    @checked("model", "cluster")
    def __init__(self, model: TrainableModel, cluster: Cluster, settings: TrainerSettings) -> None:
        """Create the model's table and dense parameters on the servers, or join those that are there."""
        settings = settings.with_place(cluster.embedded)
        self.settings = settings
        table = table_of(model, settings.table)
        model = with_row_optimizers(model, settings.row_optimizers)
        self._table = replace(table, parts=own_table_of(model).parts)
        self.model, self.cluster, self._client = model, cluster, cluster.client
        check_fits(settings, model, self._table)
        check_out(cluster, settings.out, settings.tensorboard)
        self._layout = DenseLayout(dense_shapes_of(model))
        dense = DenseSpec(self._layout.length, settings.dense_optimizer)
        set_up(cluster, model, self._table, self._layout, dense, settings.seed, settings.share)
        self._progress, self._calls = Progress.of(self._client), Calls(cluster)
        self._checkpoints = CheckpointJobs(
            cluster, self._progress, model, self._table, self._layout, settings, self._calls
        )
        gate = CheckpointPause(self._client, self._progress)
        self._cuts = self._checkpoints.cuts(gate, lambda: self._position)
        self._callbacks = Callbacks(self, settings.callbacks)
        self._history = TrainingHistory(self._progress, self._client.endpoint.clock)
        self._tools = FitTools(
            self._client,
            model,
            self._layout,
            self._progress,
            self._history,
            settings,
            gate,
            self._maintain,
            self._tell_checkpoints,
        )
        self._statistics = StatisticsJobs(
            cluster, self._progress, model, self._layout, settings.seed, self._calls
        )
        self._mode = TrainingMode(settings, self._client, self._table, dense, self._progress)
        self._epochs, self._steps, self._seconds = 0, 0, 0.0
        self._in_step = False  # in a fit whose steps all trainers make together
        self._files: list[str] = []
        self._told = set[str]()
        self._by_files = False  # whether the position is counted in files, as of a stream, or in epochs
        self._key_kinds: KeyKinds = {}
        cluster.at_end(self._cuts.finish)
        record(cluster, settings, model, self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the class that has what a trained model answers."""
            if hasattr(type(self), name):  # a property has failed: its own error says how
                return object.__getattribute__(self, name)
            if name in ("predict", "nearest", "vectors"):
                recipe = f"pslib.load(trainer.save(FOLDER)).{name}(...)"
                raise AttributeError(f"a Trainer has no {name}, which a saved model has: {recipe}")
            hint = f"; did you mean {CALLS[name]!r}?" if name in CALLS else ""
            raise AttributeError(f"'Trainer' object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        done = f"{counted(self._epochs, 'epoch')}, {counted(self._steps, 'step')}"
        return f"<Trainer of {type(self.model).__name__} on {self.cluster!r}: {done}>"

    @property
    def history(self) -> History:
        """Records of what this trainer has trained and evaluated; its ``to_pandas()`` is a frame.

        See `pslib.recorder.records.Record` for the columns. In a script that goes on from a checkpoint of an
        unfinished `fit`, epochs and examples count on.
        """
        return self._history.history

    # --- training -----------------------------------------------------------------------------------------

    @collective
    @repeatable
    def fit(
        self,
        data: Data,
        epochs: int = 1,
        valid: Data | None = None,
        *,
        stopping: EarlyStopping | None = None,
        best: PathTo | None = None,
    ) -> list[EvalResult]:
        """Train on data; with ``valid``, evaluate after every epoch and return the results.

        Ctrl-C ends it after the batch, with KeyboardInterrupt; the same call made again trains the rest.
        `evaluate` and `save` may come in between. A second Ctrl-C ends it at once. With other arguments or
        data it is another call, which begins anew, as it does in a cluster of several processes.

        Parameters
        ----------
        data : path, several paths, or a table
            Files, folders or globs of Parquet, CSV or JSON lines, or what `pslib.data.arrow_data` takes.
        epochs : int
            Number of times that every example is seen.
        valid : path, or several, or None
            Data to evaluate on after each epoch.
        stopping : EarlyStopping or None
            Uses of the results on ``valid``: lower rates, an early end, the best epoch's parameters.
        best : path, URI or None
            Place of the best epoch's checkpoint, for ``stopping.restore``.

        Raises
        ------
        ConfigurationError
            If epochs are below 1, stopping lacks something, or there is no label to evaluate ``valid`` by.
        DataError
            If a file or a value in it does not fit the schema.
        UnavailableError
            If a server is lost.
        """
        epochs = check_epochs(epochs)
        train = open_data(data, self.model.schema, key_kinds=self._key_kinds)
        self._tell_notes(train)
        check_stopping(stopping, valid, best, self._table, self.settings.dense_optimizer)
        if valid is not None:
            check_label(self.model, "fit with valid", "fit_and_rank(data, valid)")
        self._by_files = False
        if valid is None and not self._callbacks.by_epoch:
            for first in range(0, epochs, EPOCHS_A_JOB):
                count = min(EPOCHS_A_JOB, epochs - first)
                self._fit(train, count, to_come=epochs - first - count)
            return []
        schema, kinds = self.model.schema, self._key_kinds
        checked = None if valid is None else open_data(valid, schema, key_kinds=kinds, name="valid")
        if checked is not None:
            TrainedRows.of(train).check_unseen(checked)

        def evaluate() -> EvalResult | None:
            return None if checked is None else self._evaluate(checked, name="valid")

        results = self._epoch_by_epoch(train, epochs, evaluate, stopping, best)
        return [one for one in results if one is not None]

    def fit_stream(
        self, folder: PathTo, settings: StreamSettings = NO_STREAM_SETTINGS
    ) -> Iterator[StreamWindow]:
        """Predict and then train on files as they arrive in a folder, each once; yield a window at a time.

        A window is done, and may be saved, when it is given. A checkpoint knows the files that are done by
        their names: after `load` of one, the same call goes on with the others.

        Ctrl-C ends it after the batch, with KeyboardInterrupt. Files of the window under way are not done:
        the same call in this process predicts and trains all of them again, so that some of their examples
        count twice. With ``checkpoint`` or ``out`` it has saved: in another process the script goes on after
        `load` of that, and every example counts once.

        Parameters
        ----------
        folder : path or URI
        settings : StreamSettings
            When files count, how many make a window, and when the stream ends; see `pslib.data.file_watch`.

        Raises
        ------
        ConfigurationError
            At once when the schema has no label.
        DataError
            At once when there is no such folder; later when a file does not fit: it is named.

        Examples
        --------
        >>> for window in trainer.fit_stream("clicks/"):                                   # doctest: +SKIP
        ...     print(window.files, window.result.auc)
        ...     trainer.save("model", keep_last=3)
        """
        arrivals = FileWatch(os.fspath(folder), settings)
        jobs = WindowJobs(
            self._client, self._progress, self._calls, self.model.schema, arrivals, settings, self._key_kinds
        )
        self._by_files = True
        return windows(jobs, self._files, self._evaluate, lambda data: self._fit(data, 1))

    def _tell_notes(self, train: ParquetData) -> None:
        """Log what the statistics of the data show: the first trainer does, each line once."""
        if self.cluster.rank == 0 and not ranks_items(self.model):  # which finds clicks among other items
            for note in train.notes:
                if note not in self._told:
                    log.warning("pslib: warning: %s", note)
            self._told.update(train.notes)

    def _epoch_by_epoch(
        self,
        data: ParquetData,
        epochs: int,
        evaluate: Callable[[], Result],
        stopping: EarlyStopping | None,
        best: PathTo | None,
    ) -> list[Result]:
        """Train and evaluate, until an evaluation or a callback stops the fit; return the results."""

        def one_epoch(rate: float, to_come: int) -> Result:
            self._fit(data, 1, rate, to_come)
            result = evaluate()
            self._calls.once("on_epoch_end", lambda: self._callbacks.epoch_end(self._epochs, result))
            return result

        return followed(
            stopping, epochs, one_epoch, self.save, self.load, best, self._epochs, self._why_stopped
        )

    def _why_stopped(self) -> str:
        """Return the callback that stops the fit, of any trainer, or nothing; all trainers get the same."""
        if not self._callbacks.stop:
            return ""
        try:
            own = self._calls.once("should_stop", self._callbacks.stopping)
        except PreemptedError:  # this trainer leaves: none waits for its vote
            raise
        except Exception:  # its script may catch it: so all leave the fit at the same point
            voted(self._calls, self._client, self._progress, f"trainer {self.cluster.rank}, with an error")
            raise
        stop = f"{own} (trainer {self.cluster.rank})" if own else ""
        return voted(self._calls, self._client, self._progress, stop)

    def _evaluated(self, result: EvalResult | RankResult, name: str, about: Mapping[str, str | int]) -> None:
        """Record an evaluation, and call back."""
        self._calls.once("history", lambda: self._history.evaluated(result, about))
        self._calls.once("on_evaluate", lambda: self._callbacks.evaluated(name, result))

    def _tell_checkpoints(self) -> None:
        """Call back for checkpoints that this trainer has written during a fit."""
        while self._cuts.written:
            self._callbacks.checkpoint(self._cuts.written.popleft())

    @collective
    def _fit(self, data: ParquetData, epochs: int, rate: float = 1.0, to_come: int = 0) -> None:
        """Train one job; ``to_come`` epochs of the same call follow it."""
        settings = self.settings
        self._checkpoints.kinds = dict(self._key_kinds)  # those of this data among them
        self._checkpoints.trained = TrainedRows.of(data)
        lease_rows = settings.lease_rows or default_lease_rows(data.rows, settings.batch_rows)
        order = Order(settings.seed, [group.rows for group in data.row_groups], lease_rows)
        first_epoch = self._epochs
        counts = [order.leases(first_epoch + epoch) for epoch in range(epochs)]
        with Interruption() as interruption:
            job = self._open_fit(data, order, counts, lease_rows, rate, to_come)
            steps = plan_of(settings, order, first_epoch, counts, self._steps, job.ranks)
            self._history.begin(first_epoch, 0 if job.repeated else job.examples_before)
            if not job.passed:
                self._train(Fit(data, order, first_epoch, counts, rate), job, steps, interruption)
            self._epochs, self._steps = self._epochs + epochs, steps.end
            self._history.end(self._epochs)
        self._cuts.finish()
        self._tell_checkpoints()
        self._statistics.measure(data, self._epochs, self._steps)

    def _train(self, fit: Fit, job: Job, steps: JobPlan, interruption: Interruption) -> None:
        """Train this trainer's share of a job; the history of one that ends early tells how far it came."""
        self._in_step = len(job.ranks) > 1
        try:
            fit.train(self._tools, job, self._mode.of_job(job, steps), steps, self._seconds, interruption)
        except BaseException as error:
            self._history.fail()
            if isinstance(error, KeyboardInterrupt):
                self._pause(job, interruption)
            raise
        self._in_step = False

    def _pause(self, job: Job, interruption: Interruption) -> None:
        """Leave an interrupted fit so that the same call goes on with it; save it where there is a place.

        A second Ctrl-C saves nothing: a batch may be half done. Where no call goes on with it, its leases go
        back: in a cluster of several processes, which may go on without this one, and in a stream.
        """
        if not self.cluster.embedded:
            job.leave()
            return
        goes_on, saved = self._calls.may_repeat, ""
        try:
            if interruption.asked and not interruption.hurried:
                self._tools.gate.stand()
                saved = self._save_interrupted()
        finally:  # also after another Ctrl-C
            if goes_on:
                job.pause()
            else:
                job.leave()
        status = self.cluster.status()
        line = f"interrupted at example {status['examples']:,} of {status['examples_total']:,}{saved}"
        anew = "fit_stream in this process trains this window anew"
        then = "the same call of fit goes on" if goes_on else anew
        log.warning("pslib: %s; %s", line, then)
        self._calls.told = True

    def _save_interrupted(self) -> str:
        """Save where there is a place; return what the line about an interruption says of it."""
        if not save_as_it_is(self):
            return ""
        place = self.cluster.status()["saved"]
        return f"; saved in {place}: in another process the script goes on after trainer.load({place!r})"

    def _open_fit(
        self, data: ParquetData, order: Order, counts: list[int], lease_rows: int, rate: float, to_come: int
    ) -> Job:
        self._cuts.follow()
        first_epoch, settings = self._epochs, self.settings
        details: dict[str, Any] = {"examples": data.rows * len(counts), "epochs": len(counts)}
        details |= {"first_epoch": first_epoch, "epochs_to_come": to_come} | self._behind
        details |= {"lease_rows": lease_rows, "batch_rows": settings.batch_rows}
        details["model"] = type(self.model).__name__
        if settings.checkpoint:
            details["checkpoint"] = settings.checkpoint.details
        how: list[Any] = [settings.batch_rows, lease_rows, settings.seed, settings.maintain_every_batches]
        how += [settings.must_agree, first_epoch, self._steps, rate]
        return self._open("fit", data, order, counts, details, how)

    def _maintain(self, lease: HeldLease, plan: LeasePlan) -> PendingPush:
        """Start the maintenance that ends a lease; it is named like a batch, so that it happens once."""
        name, step = PushName(lease.stream, plan.batches, lease.epoch), plan.first_step + plan.batches
        time_s = self._seconds + lease.time_s
        return self._client.maintain(self._table.name, step=step, time_s=time_s, name=name)

    # --- evaluating ---------------------------------------------------------------------------------------

    @collective
    def evaluate(
        self, data: Data, *, label: str | None = None, predictions: PathTo | None = None, name: str = ""
    ) -> EvalResult:
        """Return exact AUC, log loss and calibration over all trainers' shares of the data; creates no rows.

        Parameters
        ----------
        data : path, or several
        label : str or None
            Label of the task, where the schema has several; None: the first.
        predictions : path, URI or None
            Folder for the prediction of each example
            (`pslib.trainer.evaluation.predictions.PredictionFiles`), other than that of the data, which
            needs no label then: without one the figures are nan.
        name : str
            Name in lines and records of the run, ``"test"`` for example.

        Raises
        ------
        ConfigurationError
            If the schema has no such label, or none and no predictions are asked for; when these can't be
            written to the folder, or would replace what is of no evaluation; when the data is the test part
            of a split of the training data, and another split held other rows out of the last fit.
        DataError
            If a file or a value in it does not fit the schema.

        Notes
        -----
        A script that begins with it (or with `rank`, `recommend`, `export_vectors`) after the load of a
        checkpoint of an unfinished `fit` looks at that, and does not go on with it.
        """
        task = task_of(self.model.schema, label)
        if predictions is None:
            check_label(self.model, "evaluate", "rank(data, items)")
        data = lasting(data)
        self._look()
        asked = data_of(data, self.model.schema, task, self._key_kinds, predictions is not None)
        if self._checkpoints.trained and asked.schema.labels:
            self._checkpoints.trained.check_unseen(asked)
        files = None if predictions is None else PredictionFiles(predictions, paths_in(data))
        return self._evaluate(asked, files, task, name)

    @collective
    def _evaluate(
        self, data: ParquetData, files: PredictionFiles | None = None, task: int = 0, name: str = ""
    ) -> EvalResult:
        batch_rows = self.settings.batch_rows
        lease_rows = default_lease_rows(data.rows, batch_rows)
        order = Order(0, [group.rows for group in data.row_groups], lease_rows, shuffle=False)
        details = {"examples": data.rows} | self._behind | said_of(self.model.schema, task, name)
        settings = [batch_rows, self._epochs, *([task] if task else [])]
        what = "predict" if self.model.schema.labels and not data.schema.labels else "evaluate"
        job = self._open(what, data, order, [order.leases(0)], details, settings)
        reader = LeaseReader(data, data.schema, order, batch_rows)
        with closing(reader), ModelThreads(self.model, self.settings.compute_threads, products=None) as model:
            scorer = Scorer(model, self._client, self._table.name, self._layout, self._steps, task)
            result = scorer.work_at(job, reader, files)
        if what == "evaluate":
            self._evaluated(result, name, {**self._behind, **said_of(self.model.schema, task, name)})
        return result

    # --- ranking items --------------------------------------------------------------------------------------

    @checked()
    @collective
    @repeatable
    def fit_and_rank(
        self,
        data: Data,
        valid: Data,
        epochs: int = 1,
        *,
        stopping: EarlyStopping | None = None,
        best: PathTo | None = None,
        items: Data | None = None,
        at: Sequence[int] = (20,),
        history: str | None = None,
        target: str | None = None,
        exclude_seen: bool = False,
    ) -> list[RankResult]:
        """Train, and rank after every epoch; return what the rankings have found.

        Parameters
        ----------
        data : path, or several
            Files, folders or globs to train on.
        valid : path, or several
            Examples to rank items for, as `rank` reads them.
        epochs : int
            Number of times that every example is seen, at most.
        stopping : EarlyStopping or None
            Uses of the rankings: lower rates, an early end, the best epoch's parameters. Its metric is
            that of a ranking, ``recall@20``.
        best : path or None
            Folder where the best epoch is kept; needed with a stopping that restores it.
        items : path, or several, or None
            Data whose items are ranked; None: those of ``data``.
        at, history, target, exclude_seen
            As for `rank`.

        Raises
        ------
        ConfigurationError
            If the model does not rank items, epochs are below 1, or stopping lacks something.
        DataError
            If a file does not fit.
        """
        retrieval = self._retrieval
        epochs = check_epochs(epochs)
        check_stopping(stopping, valid, best, self._table, self.settings.dense_optimizer, ranked=True)
        data, valid, items = lasting(data), lasting(valid), items and lasting(items)
        train = open_data(data, self.model.schema, key_kinds=self._key_kinds)
        how = RankingSettings(at=tuple(at), history=history, target=target, exclude_seen=exclude_seen)
        replace(retrieval, trained=TrainedRows.of(train)).check_data(valid, items or data, how)
        watched = place_of_metric(stopping.metric) if stopping else None
        if watched is not None and watched not in how.at:
            how = replace(how, at=(*how.at, watched))

        def evaluate() -> RankResult:
            return self._rank(valid, items or data, how, "valid")

        return self._epoch_by_epoch(train, epochs, evaluate, stopping, best)

    @checked()
    @collective
    def rank(
        self,
        data: Data,
        items: Data,
        *,
        at: Sequence[int] = (20,),
        history: str | None = None,
        target: str | None = None,
        exclude_seen: bool = False,
        name: str = "",
    ) -> RankResult:
        """Rank all items for each example; creates no rows.

        Parameters
        ----------
        data : path, or several
            Parquet. For a model of sessions: the items so far, a list column ``history``, and the one that
            came next. For a model of queries and items: the fields of a query, and its item.
        items : path, or several
            Data whose items are ranked: the training sessions; or rows with the fields of items, each item at
            least once. A null among them is no item, and a target that is null is a miss.
        at : sequence of int
            The k of Recall@k, MRR@k and NDCG@k; see `pslib.metrics.ranking`.
        history : str or None
            Column of the items before; None: ``prefix`` for sessions, else none.
        target : str or None
            Column of the item that is looked for; None: ``target`` for sessions, else that of the items.
        exclude_seen : bool
            Leave out what is in the history; needs one.
        name : str
            Name in lines and records of the run, ``"test"`` for example.

        Raises
        ------
        ConfigurationError
            If the model does not rank items, a k is below 1, or nothing says what was seen.
        DataError
            If a file does not fit.
        """
        how = RankingSettings(at=tuple(at), history=history, target=target, exclude_seen=exclude_seen)
        return self._rank(data, items, how, name)

    def _rank(self, data: Data, items: Data, how: RankingSettings, name: str) -> RankResult:
        result = self._retrieval.rank(data, items, how, name)
        self._evaluated(result, name, {**self._behind, "name": name})
        return result

    @checked()
    @collective
    def recommend(
        self,
        data: Data,
        items: Data,
        out: PathTo,
        *,
        k: int = 20,
        history: str | None = None,
        exclude_seen: bool = False,
        approximate: bool = False,
    ) -> None:
        """Write the best k items of each example, exactly; a chunk of scores is held at once, never all.

        Parameters
        ----------
        data, items, history, exclude_seen
            As for `rank`; no target is read.
        out : path or URI
            Folder for ``part-NNNNNN.parquet``, whose rows are those of ``data`` in their order, with lists
            ``items``, the best first, and ``scores``; shorter than k where fewer items are left.
        k : int
        approximate : bool
            Look for them in a graph of the items' vectors instead, see `pslib.metrics.top_k`; needs faiss.

        Raises
        ------
        ConfigurationError
            If the model does not rank items, nothing says what was seen, there are no vectors or no faiss
            for an approximate search, or the folder can't be written, or holds this data or other people's
            part files.
        DataError
            If a file does not fit.
        """
        self._retrieval.recommend(data, items, out, k, history, exclude_seen, approximate)

    @checked()
    @collective
    def export_vectors(
        self, data: Data, out: PathTo, *, side: str = "item", history: str | None = None
    ) -> None:
        """Write vectors: the product of a query's and an item's is their score.

        Parameters
        ----------
        data : path, or several
            Rows with the fields of items, or of queries. A model of sessions takes the column ``item``, or
            ``history``.
        out : path or URI
            Folder for ``part-NNNNNN.parquet``, whose rows are those of ``data`` in their order, with
            ``vector``, a list of fixed size of float32; of items also the column that names them and ``key``
            (uint64), their row in the table. Where that column is called so, these are ``vector_`` or
            ``key_``.
        side : "item" or "query"
        history : str or None
            As for `rank`.

        Raises
        ------
        ConfigurationError
            If the model's scores are no products of vectors, or the folder can't be written, or holds this
            data or other people's part files.
        DataError
            If a file does not fit.
        """
        self._retrieval.export_vectors(data, out, side, history)

    @property
    def _retrieval(self) -> Retrieval:
        """Retrieval of this model; ConfigurationError if it does not rank items."""
        return Retrieval(
            sides_of(self.model),
            self._client,
            self._table.name,
            self._layout,
            self.settings,
            self._key_kinds,
            self._checkpoints.trained,
            lambda: (self._position, self._behind),
            self._look,
            self._open,
        )

    # --- saving and loading ---------------------------------------------------------------------------------

    @checked()
    @collective
    def save(self, path: PathTo, *, keep_last: int = 0, space_s: float = 0.0) -> str:
        """Write a checkpoint: every server its files, then the manifest; return its path.

        One trainer does it while the others wait. A checkpoint at ``path`` is replaced at the last moment.

        Parameters
        ----------
        path : path or URI
            A folder that all servers reach: local, ``s3://``, ``gs://`` or ``hdfs://``.
        keep_last : int
            0: the checkpoint is ``path``. Else it is a new folder ``checkpoint-N`` in ``path``, and when it
            is complete, all but the newest ``keep_last`` complete ones there are removed.
        space_s : float
            Seconds of retries, each reported, while there is no space for it; 0: none.

        Raises
        ------
        CheckpointError
            If the place can't be written by the servers.
        CheckpointFullError
            If there is no space for it.
        """
        place, is_ours = self._checkpoints.save(path, keep_last, self._position, space_s)
        if is_ours:
            self._callbacks.checkpoint(place)
        return place

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
            True if a script whose `fit` was saved while it went on goes on exactly: calls that were done are
            passed over, and of the one that was under way every example counts once. One that begins with
            `evaluate` or the like, where that one trained, may look at it and nothing more. False: all is
            new.
        other_model : bool
            True to go on with what a model of another class, with other columns, or with parameters of
            other names has learned, where the numbers fit. False: that is refused, as it mostly is a slip;
            so is data later whose keys are made of numbers where the checkpoint's were made of texts, or the
            other way round.

        Raises
        ------
        CheckpointError
            If there is none, it is damaged, its rows or dense parameters do not fit this model, or another
            model has learned them.
        ConfigurationError
            If ``tables`` names one that this model does not have; or when another load was left before it
            was done, as another trainer may be at it: call that again first.
        """
        names = None if tables is None else tuple(tables)
        how = LoadSettings(
            path=place_of(path), state=state, tables=names, resume=resume, other_model=other_model
        )
        position = self._checkpoints.load(how, self._position)
        if position is not None:
            self._stand_at(position)
        if self._checkpoints.replaces_rows(names):  # in place: a stream that goes on has it, too
            self._key_kinds.clear()
            self._key_kinds.update(self._checkpoints.kinds)
        goes_on = position is not None and state
        self._mode.loaded(self._steps // self.cluster.trainers if goes_on else 0)

    # --- where it stands ------------------------------------------------------------------------------------

    def _stand_at(self, position: Position) -> None:
        self._epochs, self._steps, self._seconds = position.epochs, position.steps, position.seconds
        self._files[:], self._by_files = position.files, bool(position.files)

    def _look(self) -> None:
        """Set the position to the checkpoint's before a read-only call that begins a script."""
        if self._calls.leave():
            self._stand_at(self._checkpoints.saved)

    @property
    def _position(self) -> Position:
        return Position(self._epochs, self._steps, self._seconds, tuple(self._files))

    @property
    def _behind(self) -> dict[str, int]:
        """Files or epochs trained so far, for records."""
        return {"files": len(self._files)} if self._by_files else {"epoch": self._epochs}

    def _open(
        self, what: str, data: ParquetData, order: Order, counts: list[int], details: Any, agreed: Any
    ) -> Job:
        by_rank = what == "fit" and self.settings.consistency == "sync"
        self._in_step = False  # this trainer has left the fit that it was in
        spec = spec_of(what, data, order, counts, details, agreed, by_rank)
        return self._calls.open(self._client, self._progress, spec)


def save_as_it_is(trainer: Trainer) -> bool:
    """Save what is trained, as for SIGTERM, after an error in a call; return whether it is saved.

    Nothing where no ``checkpoint`` was set, within a fit of ``sync``, whose step other trainers can't end
    alone, or when it can't be done in `pslib.config.Timing.drain_s`.
    """
    if not trainer.settings.checkpoint or trainer._in_step:
        return False
    return trainer._cuts.save_as_it_is()
