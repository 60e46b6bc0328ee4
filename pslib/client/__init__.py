"""The side that asks: the client's verbs, the thread that sends and receives, membership in a cluster."""
