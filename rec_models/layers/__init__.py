"""Layers: each a function and its gradient in one file."""

from rec_models.layers.activation import relu, sigmoid, tanh
from rec_models.layers.add import add
from rec_models.layers.attention import attention
from rec_models.layers.batch_norm import batch_norm
from rec_models.layers.bi_interaction import bi_interaction
from rec_models.layers.bilinear_fusion import bilinear_fusion
from rec_models.layers.bilinear_pairs import bilinear_pairs
from rec_models.layers.bpr_max import bpr_max
from rec_models.layers.causal_attention import causal_attention
from rec_models.layers.compress import compress
from rec_models.layers.concat import concat
from rec_models.layers.cross import cross
from rec_models.layers.cross_matrix import cross_matrix
from rec_models.layers.dense_vectors import dense_vectors
from rec_models.layers.dice import dice
from rec_models.layers.dot import dot
from rec_models.layers.dropout import dropout
from rec_models.layers.edge_mean import edge_mean
from rec_models.layers.embedding import embedding
from rec_models.layers.facing import facing
from rec_models.layers.first_order import first_order
from rec_models.layers.fm import fm
from rec_models.layers.gather import gather
from rec_models.layers.gru import gru
from rec_models.layers.inner_products import inner_products
from rec_models.layers.layer_norm import layer_norm
from rec_models.layers.linear import linear
from rec_models.layers.linear_relu import linear_relu
from rec_models.layers.list_max import list_max
from rec_models.layers.list_softmax import list_softmax
from rec_models.layers.list_vectors import list_vectors
from rec_models.layers.log_loss import log_loss
from rec_models.layers.logit_of_product import logit_of_product
from rec_models.layers.mixture import mixture
from rec_models.layers.mlp import mlp, mlp_shapes
from rec_models.layers.multiply import multiply
from rec_models.layers.normalize import normalize
from rec_models.layers.prefix_attention import prefix_attention
from rec_models.layers.prefix_mean import prefix_mean
from rec_models.layers.prelu import prelu
from rec_models.layers.product import product
from rec_models.layers.rank_hinge import rank_hinge
from rec_models.layers.relu_head import relu_head
from rec_models.layers.reshape import reshape
from rec_models.layers.row_dot import row_dot
from rec_models.layers.sampled_softmax import sampled_softmax
from rec_models.layers.split import split
from rec_models.layers.squeeze_excite import squeeze_excite
from rec_models.layers.sum_vectors import sum_vectors
from rec_models.layers.take_fields import take_fields
from rec_models.layers.tower import tower, tower_shapes
from rec_models.layers.weighted_sum import weighted_sum
from rec_models.layers.windows import windows

__all__ = [
    "add",
    "attention",
    "batch_norm",
    "bi_interaction",
    "bilinear_fusion",
    "bilinear_pairs",
    "bpr_max",
    "causal_attention",
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
    "gru",
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
    "tower_shapes",
    "weighted_sum",
    "windows",
]
