"""Models of a consortium: fitted by federated rounds without a step size, chosen by cross-validation, judged."""
