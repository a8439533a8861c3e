"""The loops, where clients live, and what is measured; knows nothing of files, folders and commands."""
