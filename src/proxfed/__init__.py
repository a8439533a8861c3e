"""proxfed: federated composite optimisation."""

__version__ = "0.1.0"
