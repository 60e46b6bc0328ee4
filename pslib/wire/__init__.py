"""Wire protocol: messages, codec and pure state machines of both ends; no socket, no clock, no thread."""
