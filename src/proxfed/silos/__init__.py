"""Federated runs between organisations: holders that keep their rows, a coordinator, and bytes between them.

A holder (`holder.py`) is a function from bytes to bytes with a durable state; a carrier (`carrier.py`) brings questions
to holders and answers back, and knows nothing else. docs/explanation/silos.md tells the story.
"""
