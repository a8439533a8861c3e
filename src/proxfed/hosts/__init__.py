"""Our algorithms inside other frameworks: the halves of a round, over any torch module."""
