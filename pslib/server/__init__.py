"""The process that owns rows: a receiving thread, shard threads, moves to other servers."""
