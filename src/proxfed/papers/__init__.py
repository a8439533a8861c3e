"""The papers' experiments: run them, hold their claims against what came out, draw their figures."""
