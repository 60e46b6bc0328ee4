"""Layers: functions of variables on a tape, each with its gradient."""

from rec_models.layers.activations import dice, prelu, relu, sigmoid, tanh
from rec_models.layers.arithmetic import add, mixture, multiply, row_dot, sum_vectors
from rec_models.layers.attention import attention, causal_attention, prefix_attention
from rec_models.layers.dropout import dropout
from rec_models.layers.embedding import dense_vectors, dot, embedding, first_order, list_vectors
from rec_models.layers.interactions import (
    bi_interaction,
    bilinear_fusion,
    bilinear_pairs,
    compress,
    cross,
    cross_matrix,
    fm,
    inner_products,
    squeeze_excite,
)
from rec_models.layers.linear import linear, linear_relu, product, relu_head
from rec_models.layers.lists import facing, list_max, list_softmax, weighted_sum, windows
from rec_models.layers.losses import log_loss, logit_of_product
from rec_models.layers.mlp import mlp, mlp_shapes, tower, tower_output, tower_shapes
from rec_models.layers.normalization import batch_norm, layer_norm, normalize
from rec_models.layers.ranking_losses import bpr_max, rank_hinge, sampled_softmax
from rec_models.layers.sequences import cnn, cnn_shapes, edge_mean, grnn, gru, gru_shapes, prefix_mean
from rec_models.layers.shapes import concat, gather, reshape, split, take_fields

__all__ = [
    "add",
    "attention",
    "batch_norm",
    "bi_interaction",
    "bilinear_fusion",
    "bilinear_pairs",
    "bpr_max",
    "causal_attention",
    "cnn",
    "cnn_shapes",
    "compress",
    "concat",
    "cross",
    "cross_matrix",
    "dense_vectors",
    "dice",
    "dot",
    "dropout",
    "edge_mean",
    "embedding",
    "facing",
    "first_order",
    "fm",
    "gather",
    "grnn",
    "gru",
    "gru_shapes",
    "inner_products",
    "layer_norm",
    "linear",
    "linear_relu",
    "list_max",
    "list_softmax",
    "list_vectors",
    "log_loss",
    "logit_of_product",
    "mixture",
    "mlp",
    "mlp_shapes",
    "multiply",
    "normalize",
    "prefix_attention",
    "prefix_mean",
    "prelu",
    "product",
    "rank_hinge",
    "relu",
    "relu_head",
    "reshape",
    "row_dot",
    "sampled_softmax",
    "sigmoid",
    "split",
    "squeeze_excite",
    "sum_vectors",
    "take_fields",
    "tanh",
    "tower",
    "tower_output",
    "tower_shapes",
    "weighted_sum",
    "windows",
]
