# ruff: noqa: B018 (the last value of a cell is shown)
# %% data, model and cluster
import pandas

import pslib
from rec_models import DeepFM

clicks = pandas.read_csv("clicks.csv")
train, test = clicks[:-4000], clicks[-4000:]
genres = pslib.RaggedField("genres", separator="|")
schema = pslib.Schema(label="click", sparse=["user", "item", "city"], dense=["price"], ragged=[genres])
cluster = pslib.connect()
trainer = pslib.Trainer(DeepFM(schema, dim=8), cluster, batch_rows=256, out="runs/notebook")
# %% interrupted
trainer.fit(train, epochs=4)
# %% goes on
trainer.fit(train, epochs=4)
# %% counted
trainer.history.table["examples"].to_pylist()[-1]
# %% model
trainer.model
# %% result
trainer.evaluate(test)
# %% history
trainer.history
# %% plot
_ = trainer.history.to_pandas().plot("examples", "loss")
# %% a call with a mistake
trainer.fit(train, num_epochs=1)
# %% loaded
trainer.save("runs/notebook/checkpoint")
model = pslib.load("runs/notebook/checkpoint")
model
# %% predictions
model.predict(pandas.read_csv("new.csv")).shape
# %% end
cluster.close()
