"""DeepFM on click data: alone, `python train_deepfm.py DATA`, or unchanged under `pslib launch`."""

import sys

import pslib
from rec_models import DeepFM

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/demo/data"  # from `pslib demo`, or `pslib data generate`

schema = pslib.Schema(
    label="label",
    dense=[pslib.DenseField(f"I{number}", log1p=True) for number in range(1, 14)],
    sparse=[f"C{number}" for number in range(1, 27)],
)
model = DeepFM(schema, dim=8, hidden=(128, 64))
optimizers = {"rows": pslib.Adagrad(0.05, initial_accumulator=1e-6), "dense": pslib.Adam(0.001)}

with pslib.connect() as cluster:
    trainer = pslib.Trainer(model, cluster, batch_rows=1024, optimizers=optimizers, out="runs/script")
    trainer.fit(f"{folder}/train.parquet", epochs=1)
    result = trainer.evaluate(f"{folder}/test.parquet")
    trainer.save("runs/script/checkpoint")
    print(f"trainer {cluster.rank}: AUC {result.auc:.4f}, log loss {result.logloss:.4f}")
