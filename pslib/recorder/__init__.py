"""Recorder of a run: progress bar, ``metrics.jsonl``, ``summary.json`` and ``run.png``."""

from pslib.recorder.recorder import RunRecorder

__all__ = ["RunRecorder"]
