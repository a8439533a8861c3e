"""The papers' experiments: run them, test their claims on our results, draw their figures."""
