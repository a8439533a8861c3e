"""The side of the coordinator: the server's half of a run, or the relay between peers."""
