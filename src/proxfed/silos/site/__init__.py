"""The organisation's side: its rows, its computations on them and its stored state."""
