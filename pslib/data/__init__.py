"""Data: Parquet reader, converters to Parquet, data checks and a generator of synthetic samples."""

from pslib.data.column_types import column_problems
from pslib.data.dataset import ParquetData, RowGroup
from pslib.data.order import LEASE_ROWS_MAX, WINDOW_ROWS, GroupSlice, LeasePiece, Order, default_lease_rows
from pslib.data.reader import LeaseReader

__all__ = [
    "LEASE_ROWS_MAX",
    "WINDOW_ROWS",
    "GroupSlice",
    "LeasePiece",
    "LeaseReader",
    "Order",
    "ParquetData",
    "RowGroup",
    "column_problems",
    "default_lease_rows",
]
