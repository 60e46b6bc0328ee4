"""What people see of a run: a bar while it goes on, then ``metrics.jsonl``, ``summary.json``, ``run.png``."""

from pslib.recorder.recorder import RunRecorder

__all__ = ["RunRecorder"]
