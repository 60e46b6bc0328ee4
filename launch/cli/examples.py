"""Examples in ``pslib --help`` and the help of each command; a test parses every one."""

from __future__ import annotations

__all__ = ["EXAMPLES", "FIRST_STEPS", "epilog_of"]

FIRST_STEPS = """first steps:
  pslib demo                                          data that is made, a model that is trained: two minutes
  pslib describe clicks/train --out clicks.yaml       what is in your data, and a job file for it
  pslib train clicks.yaml --servers 2 --trainers 2
  pslib eval clicks.yaml --checkpoint runs/clicks/checkpoint --data clicks/later.parquet
  pslib doctor runs/clicks                            how the run goes, or how it ended
"""

EXAMPLES = {
    "train": """pslib train clicks.yaml --servers 2 --trainers 2 --set training.epochs=2
pslib train clicks.yaml --resume
pslib train clicks.yaml --on ssh --hosts hosts.txt""",
    "eval": """pslib eval clicks.yaml --checkpoint runs/clicks/checkpoint --data later.parquet
pslib eval clicks.yaml --checkpoint runs/clicks/checkpoint --data new.parquet --predictions scores""",
    "recommend": "pslib recommend movies.yaml --checkpoint runs/movies/checkpoint --out best -k 20",
    "vectors": "pslib vectors movies.yaml --checkpoint runs/movies/checkpoint --out vectors --side item",
    "launch": """pslib launch --servers 2 --trainers 2 train.py data/
pslib launch --on ssh --hosts hosts.txt train.py data/""",
    "demo": "pslib demo --out runs/demo",
    "describe": "pslib describe clicks/train --label clicked --out clicks.yaml",
    "doctor": """pslib doctor runs/clicks
pslib doctor tcp://10.0.0.1:7000 --cluster-id 5f3a91c0""",
    "verify": "pslib verify clicks.yaml --seeds 3",
    "forget": "pslib forget user=42 --table embedding --cluster runs/clicks --checkpoints runs/clicks",
    "scale": """pslib scale --servers 4 runs/clicks
pslib scale --drain 1 runs/clicks""",
    "server": "pslib server --coordinator tcp://10.0.0.1:7000 --cluster-id 5f3a91c0 --listen tcp://10.0.0.9:0",
    "plan": "pslib plan --rows 5e9 --examples-per-s 2e6 --machine cores=32,memory=256GB,network=25Gbit",
    "keys": """pslib keys make keys
pslib keys add keys dashboard --role reader""",
    "bench calibrate": "pslib bench calibrate --json costs.json",
    "config show": "pslib config show training.batch_rows",
    "data check": "pslib data check clicks.parquet --config clicks.yaml",
    "data generate": "pslib data generate generated --rows 400000",
    "convert criteo": "pslib convert criteo day_0.tsv.gz day_0.parquet",
    "convert csv": "pslib convert csv clicks.csv clicks.parquet --label click --sparse user,item",
    "convert jsonl": "pslib convert jsonl events.jsonl.gz events.parquet --label clicked",
    "convert libsvm": "pslib convert libsvm a9a.txt a9a.parquet",
    "convert libffm": "pslib convert libffm ffm.txt ffm.parquet",
    "checkpoint ls": "pslib checkpoint ls runs",
    "checkpoint verify": "pslib checkpoint verify runs/first/checkpoint",
    "checkpoint diff": "pslib checkpoint diff runs/first/checkpoint runs/second/checkpoint",
    "checkpoint export": "pslib checkpoint export runs/first/checkpoint exported --parquet",
}
"""Examples by command, without ``pslib``."""


def epilog_of(program: str) -> str | None:
    """Return the epilog of the help of a command, for example ``pslib checkpoint ls``."""
    name = program.removeprefix("pslib ")
    if name not in EXAMPLES:
        return None
    lines = EXAMPLES[name].splitlines()
    return "\n".join([f"example{'s'[: len(lines) > 1]}:", *(f"  {line}" for line in lines)])
