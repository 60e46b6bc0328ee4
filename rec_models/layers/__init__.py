"""Layers: each a function and its gradient in one file."""

from rec_models.layers.activation import relu, sigmoid, tanh
from rec_models.layers.add import add
from rec_models.layers.concat import concat
from rec_models.layers.dot import dot
from rec_models.layers.dropout import dropout
from rec_models.layers.embedding import embedding
from rec_models.layers.first_order import first_order
from rec_models.layers.fm import fm
from rec_models.layers.gather import gather
from rec_models.layers.gru import gru
from rec_models.layers.linear import linear
from rec_models.layers.linear_relu import linear_relu
from rec_models.layers.log_loss import log_loss
from rec_models.layers.mlp import mlp, mlp_shapes
from rec_models.layers.relu_head import relu_head
from rec_models.layers.sampled_softmax import sampled_softmax
from rec_models.layers.split import split

__all__ = [
    "add",
    "concat",
    "dot",
    "dropout",
    "embedding",
    "first_order",
    "fm",
    "gather",
    "gru",
    "linear",
    "linear_relu",
    "log_loss",
    "mlp",
    "mlp_shapes",
    "relu",
    "relu_head",
    "sampled_softmax",
    "sigmoid",
    "split",
    "tanh",
]
