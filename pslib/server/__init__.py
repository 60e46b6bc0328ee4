"""Server process: a receive thread, shard threads that own rows, and migration to other servers."""
