"""Client side: pull, push and erase, the send and receive thread, cluster membership."""
