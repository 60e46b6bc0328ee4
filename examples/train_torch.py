"""A PyTorch network on click data: alone, `python train_torch.py DATA`, or unchanged under `pslib launch`."""

import sys

import torch

import pslib
from rec_models import TorchModel

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/demo/data"  # from `pslib demo`, or `pslib data generate`


class Network(torch.nn.Module):
    """Your own network: (B, F, D) vectors of the fields and (B, N) numbers in, (B,) logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(26 * 8 + 13, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 1)
        )

    def forward(self, vectors: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return self.deep(torch.cat([vectors.flatten(1), dense], 1)).squeeze(1)


schema = pslib.Schema(
    label="label",
    dense=[pslib.DenseField(f"I{number}", log1p=True) for number in range(1, 14)],
    sparse=[f"C{number}" for number in range(1, 27)],
)
model = TorchModel(schema, Network, dim=8, v_optimizer=pslib.Adagrad(0.05, initial_accumulator=1e-6))

with pslib.connect() as cluster:
    trainer = pslib.Trainer(model, cluster, batch_rows=1024)
    trainer.fit(f"{folder}/train.parquet", epochs=1)
    result = trainer.evaluate(f"{folder}/test.parquet")
    trainer.save("runs/torch/checkpoint")
    print(f"trainer {cluster.rank}: AUC {result.auc:.4f}, log loss {result.logloss:.4f}")

network = model.trained("runs/torch/checkpoint")  # the module itself, to export; rows are tables beside it
