"""What a user writes, under `mypy --strict`: `make lint` checks that it is accepted, and what is marked is not."""

from torch import Tensor

from proxfed import (
    L1,
    Cases,
    FedAvg,
    FedComposite,
    Linear,
    Logistic,
    Problem,
    Results,
    Ring,
    compare,
    load,
    penalty_path,
    run,
)  # fmt: skip
from proxfed.schedules import InverseRoot
from proxfed.types import Algorithm

problem = Linear(load("synthetic_binary", alpha=1.0, beta=1.0, clients=10, samples=50, features=5), Logistic())

unresolved: FedAvg = FedAvg(eta="auto", K=5)
local_steps: int = unresolved.K
still: tuple[str, ...] = unresolved.to_find
resolved: FedAvg = unresolved.resolve(eta=0.5)
FedAvg(0.1, 5)
FedAvg(InverseRoot(0.1), 5)
FedAvg(lambda t: 1 / t, 5)
FedAvg(eta="Auto", K=5)  # type: ignore[arg-type]
FedComposite(eta="auto", tau="auto")  # type: ignore[arg-type]

penalised: FedComposite = FedComposite(eta="auto", tau=5)
length: float = FedComposite(0.5, 5).eta * penalised.tau

message: str = run(problem, unresolved, rounds=10).message

sparse: Problem[Linear] = problem + L1(0.01)
result = run(sparse, penalised, rounds=10)
print(sparse.with_h(L1(0.1)).f.coefficients(result.model))
print(penalty_path(sparse, penalised, 5, rounds=10).coefficients())
entries: dict[str, Algorithm] = {"FedAvg": unresolved, "FedComposite": penalised}
results: Results = compare(sparse, entries, rounds=10, seeds=3)
print(results.table(), results.models["FedAvg", 0])
cases: Cases = compare({"weak": sparse, "strong": sparse.with_h(L1(0.1))}, entries, rounds=10)
weak: Results = cases["weak"]
compare(sparse, entries, rounds=10, topology=Ring(10))
solution: Tensor = sparse.solve()
compare(sparse, entries, rounds="10")  # type: ignore[call-overload]
