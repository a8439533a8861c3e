"""The round loops, the networks of clients and the measures; independent of files, folders and commands."""
