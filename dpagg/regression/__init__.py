"""Linear regression on what a release holds: solvers and the model they end in."""
