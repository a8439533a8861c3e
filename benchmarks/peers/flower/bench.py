"""Flower: its FedAvg strategy and its simulation on Ray, with one worker per core or one worker for all cores."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets import loss_of, net
from torch import nn
from turns import Clock, options, peak_rss_mb
from workload import ETA, SAMPLES, WORKLOADS


def client_app(name: str, threads: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        work = WORKLOADS[name]
        x, y = map(torch.from_numpy, work.client(int(context.node_config["partition-id"])))
        model, loss = net(work), nn.CrossEntropyLoss()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
        for rows in torch.randperm(len(x)).split(work.batch):
            optimiser.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimiser.step()
        trained = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": SAMPLES}),
        }
        return Message(content=RecordDict(trained), reply_to=message)

    return app


def server_app(name: str, rounds: int, clock: Clock) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        work = WORKLOADS[name]
        model = net(work)
        before = loss_of(model, work)

        def after(t: int, arrays: ArrayRecord) -> None:
            if t > 0:  # it is also called before the first round
                clock.tick()

        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)
        trained = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=after)
        model.load_state_dict(trained.arrays.to_torch_state_dict())
        clock.report(before - loss_of(model, work), peak_rss_mb())

    return app


def main() -> None:
    args = options(__doc__, "ab")
    work = WORKLOADS[args.workload]
    work.data()
    run_simulation(
        server_app(args.workload, args.rounds, Clock()),
        client_app(args.workload, args.threads),
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": args.threads, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
