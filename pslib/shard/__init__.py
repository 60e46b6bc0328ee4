"""The partitions that one thread of a server owns, as state machines: pulls, pushes, log, images, cuts."""
