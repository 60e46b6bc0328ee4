"""Resource demand of one batch on servers and trainers, from a workload and coefficients."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.planner.coefficients import Coefficients
from pslib.planner.simulate import BatchCost
from pslib.planner.workload import KEY_BYTES, Workload

HEADER_BYTES = 250.0
"""Bytes of a message's header with table, arrays and push name, and of ZeroMQ's and TCP's headers."""
US = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of one batch on a number of servers, in core seconds of one process.

    Attributes
    ----------
    workload : Workload
    costs : Coefficients
    servers : int
    shard_threads : int
        Threads of a server that own rows.
    trainer_cores : float
        Cores of one trainer process.
    """

    workload: Workload
    costs: Coefficients
    servers: int
    shard_threads: int = 1
    trainer_cores: float = 1.0

    @property
    def rows_each(self) -> float:
        """Keys per message."""
        return self.workload.batch_keys / self.servers

    @property
    def dense_each(self) -> float:
        """Dense floats per message."""
        return self.workload.dense_floats / self.servers

    @property
    def pull_bytes(self) -> float:
        """Bytes of a request for rows."""
        return HEADER_BYTES + KEY_BYTES * self.rows_each

    @property
    def rows_bytes(self) -> float:
        """Bytes of a reply with rows and dense floats."""
        of_rows = self.workload.floats * self.workload.wire_float_bytes * self.rows_each
        return HEADER_BYTES + of_rows + 4.0 * self.dense_each

    @property
    def push_bytes(self) -> float:
        """Bytes of a push: keys, gradients of rows and of dense floats."""
        return self.rows_bytes + KEY_BYTES * self.rows_each

    @property
    def server_in_bytes(self) -> float:
        """Bytes that one server receives for a batch."""
        return self.pull_bytes + self.push_bytes

    @property
    def server_out_bytes(self) -> float:
        """Bytes that one server sends for a batch."""
        return self.rows_bytes + HEADER_BYTES

    @property
    def message_s(self) -> float:
        """Server work for one request, excluding rows and bytes; it is Python's, so one core at a time."""
        further = self.costs.thread_job_us * (self.shard_threads - 1)
        return (self.costs.server_message_us + further) * US

    @property
    def pull_rows_s(self) -> float:
        """Work of a server's threads to read the rows of one request."""
        row = self.costs.row_us(self.workload.table.storage, self.workload.floats)
        return (row.pull_us + self.costs.server_row_us) * self.rows_each * US

    @property
    def push_rows_s(self) -> float:
        """Work of a server's threads to apply one push."""
        row = self.costs.row_us(self.workload.table.storage, self.workload.floats)
        dense_us = self.costs.dense_step_us * self.dense_each / 1e6
        return ((row.push_us + self.costs.server_row_us) * self.rows_each + dense_us) * US

    @property
    def server_bytes_s(self) -> float:
        """Work of a server to move a batch's bytes in and out."""
        return self.costs.server_mb_us * (self.server_in_bytes + self.server_out_bytes) / 1e6 * US

    @property
    def server_s(self) -> float:
        """All work of a server for one batch."""
        return 2 * self.message_s + self.pull_rows_s + self.push_rows_s + self.server_bytes_s

    @property
    def read_s(self) -> float:
        """Work to read a batch and compute its keys."""
        workload = self.workload
        values = (workload.keys + workload.dense_fields) * workload.batch_rows
        return self.costs.together * self.costs.read_value_us * values * US

    @property
    def compute_s(self) -> float:
        """Parallel part of the step."""
        work, costs = self.workload, self.costs
        millions_us = costs.multiply_add_us * work.multiply_adds + costs.float_us * work.touched_floats
        example_us = millions_us / 1e6 + costs.key_us * work.keys
        return costs.together * example_us * work.batch_rows * US

    @property
    def between_s(self) -> float:
        """Serial part of the step, and the hand-over of a batch between the threads of a trainer."""
        return (self.costs.together * self.costs.step_us + self.costs.batch_us) * US

    @property
    def asking_s(self) -> float:
        """Work of a trainer to make the requests of a pull, or of a push, excluding their bytes."""
        costs, keys = self.costs, self.workload.batch_keys
        once_us = (costs.client_message_us * self.servers + costs.client_row_us * keys) / 2
        return costs.together * once_us * US

    @property
    def trainer_bytes_s(self) -> float:
        """Work of a trainer to move a batch's bytes in and out."""
        count = (self.server_in_bytes + self.server_out_bytes) * self.servers
        return self.costs.together * self.costs.client_mb_us * count / 1e6 * US

    @property
    def trainer_s(self) -> float:
        """All work of a trainer for one batch."""
        return self.read_s + self.compute_s + self.between_s + 4 * self.asking_s + self.trainer_bytes_s

    @property
    def read_width(self) -> float:
        """Cores used by reading."""
        return max(1.0, min(self.costs.read_width, self.trainer_cores))

    @property
    def compute_width(self) -> float:
        """Cores used by a step, scaled from the measured machine to this number of cores."""
        measured = max(self.costs.compute_width, 1.0)
        if self.trainer_cores <= 1 or self.costs.cores <= 1:
            return 1.0
        # Amdahl: a step that kept w of c cores busy has a parallel part p, 1/w = (1 - p) + p/c.
        cores = self.costs.cores
        spread = min(max((1 - 1 / measured) / (1 - 1 / cores), 0.0), 1.0)
        return 1 / ((1 - spread) + spread / self.trainer_cores)

    def batch_cost(self, servers: int, trainer_share: float) -> BatchCost:
        """Simulation input in which ``servers`` stand for all, with ``trainer_share`` of the trainers.

        A trainer's message then stands for several, and a server has the load of one real server, from fewer
        trainers.
        """
        each = self.servers / servers
        answer_s = self.asking_s / self.servers
        return BatchCost(
            read_s=self.read_s,
            read_width=self.read_width,
            pull_s=self.asking_s,
            push_s=self.asking_s + self.between_s,
            compute_s=self.compute_s,
            compute_width=self.compute_width,
            answer_s=answer_s * each,
            ack_s=answer_s * each,
            receive_s=self.message_s / trainer_share,
            pull_rows_s=self.pull_rows_s / trainer_share,
            push_rows_s=self.push_rows_s / trainer_share,
            server_byte_s=self.costs.server_mb_us / 1e6 * US / trainer_share,
            trainer_byte_s=self.costs.together * self.costs.client_mb_us / 1e6 * US * each,
            hop_s=self.costs.hop_us * US / 2,
            pull_bytes=self.pull_bytes,
            rows_bytes=self.rows_bytes,
            push_bytes=self.push_bytes,
            ack_bytes=HEADER_BYTES,
        )
