"""Shards: the partitions of one server thread, as pure state machines for requests, log, images and cuts."""
