"""The command line, thin: a command reads its options, calls the harness, and prints."""
