"""How far can the uplink be compressed? FedCEF with ever fewer coordinates, against bytes."""

from proxfed import FedCEF, Linear, Logistic, load, run
from proxfed.compressors import Identity, ScaledSign, TopK
from proxfed.regularisers import L1

data = load("synthetic_binary", alpha=1.0, beta=1.0, clients=10, samples=100, features=100)
problem = Linear(data, Logistic(), l2=0.05) + L1(0.005)
best = problem.solve()
for compressor in (Identity(), TopK(fraction=0.1), TopK(fraction=0.02), ScaledSign()):
    rows = run(problem, FedCEF(alpha=0.5, K=5, compressor=compressor), rounds=400, every=5, reference=best).rows
    there = next((row for row in rows if row["error"] < 1e-4), None)
    reached = "not reached" if there is None else f"round {there['round']}, {there['bytes_up'] / 1e6:.2f} MB up"
    print(f"{compressor!s:45}  error 1e-4: {reached}")
