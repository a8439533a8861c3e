"""proxfed: federated composite optimisation."""
