"""Adapters to other tools, each an optional extra."""
