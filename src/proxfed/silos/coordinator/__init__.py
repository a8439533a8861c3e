"""The coordinator's side: the server's half of a run, or the relay between peers."""
