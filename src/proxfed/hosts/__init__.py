"""Our algorithms inside other frameworks: the two halves of a round, over any torch module, for whoever carries it."""
