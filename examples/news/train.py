"""Train on files of clicks as they arrive, and save after each hour: `pslib launch train.py FOLDER OUT`."""

import sys

from clicks import FILES_AN_HOUR

import pslib
from rec_models import DeepFM

folder, out = sys.argv[1:]
model = DeepFM(pslib.Schema(label="click", sparse=["segment", "article"]), dim=8, hidden=(32,))
optimizers = {"rows": pslib.Adam(0.03), "dense": pslib.Adam(0.005)}

with pslib.connect() as cluster:
    trainer = pslib.Trainer(model, cluster, batch_rows=200, optimizers=optimizers)
    windows = trainer.fit_stream(folder, pslib.StreamSettings(poll_s=0.05))
    for done, _ in enumerate(windows, start=1):
        if done % FILES_AN_HOUR == 0:
            trainer.save(f"{out}/checkpoint", keep_last=2)
