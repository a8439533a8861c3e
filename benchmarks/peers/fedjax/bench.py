"""FedJAX: its federated averaging, every client's steps compiled by jax.jit (its default backend)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from turns import Clock, options
from workload import ETA, WORKLOADS, Workload

jax.tree_map = jax.tree.map  # which JAX has taken away, and FedJAX calls in two places
import fedjax  # noqa: E402


def start(work: Workload) -> list[jax.Array]:
    """Inputs before outputs, channels last: the order that JAX is fastest with on a CPU."""
    values = [jnp.asarray(value) for value in work.start()]
    if len(work.sample) == 3:
        values[4] = values[4].reshape(500, 64, 4, 4).transpose(0, 2, 3, 1).reshape(500, 1024)
    return [value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T for value in values]


def scores(p: list[jax.Array], x: jax.Array) -> jax.Array:
    while p[0].ndim == 4:
        x = jax.lax.conv_general_dilated(x, p[0], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + p[1]
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        p = p[2:]
    x = x.reshape(len(x), -1)
    while len(p) > 2:
        x, p = jax.nn.relu(x @ p[0] + p[1]), p[2:]
    return x @ p[0] + p[1]


def loss(p: list[jax.Array], batch: dict[str, jax.Array], rng: jax.Array | None = None) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores(p, batch["x"]), batch["y"]).mean()


def examples(work: Workload, i: int) -> dict:
    x, y = work.client(i)
    return {"x": x if x.ndim == 2 else x.transpose(0, 2, 3, 1).copy(), "y": y}


def main() -> None:
    args = options(__doc__, "ab")
    work = WORKLOADS[args.workload]
    fedjax.set_for_each_client_backend("jit")
    held = [fedjax.ClientDataset(examples(work, i)) for i in range(work.clients)]
    clock = Clock()
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(ETA),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
    )
    state = algorithm.init(start(work))
    seen = examples(work, 0)
    before = float(loss(state.params, seen))

    def one_round() -> None:
        nonlocal state
        keys = jax.random.split(jax.random.PRNGKey(len(clock.seconds)), work.clients)
        state, _ = algorithm.apply(state, list(zip(range(work.clients), held, keys, strict=True)))
        jax.block_until_ready(state.params)

    clock.time(one_round, args.rounds)
    clock.report(before - float(loss(state.params, seen)))


if __name__ == "__main__":
    main()
