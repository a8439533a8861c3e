"""A sparse network on handwritten digits of ten clients, by FedCEF, inside Flower: `flwr run .` in this folder."""

import torch
from flwr.serverapp import ServerApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxfed import algorithms, compressors, data, regularisers
from proxfed.flower import ProxfedStrategy, Training, arrays, client_app

ALGORITHM = algorithms.FedCEF(0.3, K=5, compressor=compressors.TopK(fraction=0.05))
H = regularisers.L1(1e-3)
DATA = data.load("digits", data.PARTITIONS["dirichlet_by_class"](10, alpha=0.3))
NETWORK = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def training(context):
    A, b = DATA.client(context.node_config["partition-id"])
    rows = TensorDataset(torch.tensor(A).float(), torch.tensor(b))
    return Training(NETWORK, nn.CrossEntropyLoss(), DataLoader(rows, 20, shuffle=True))


client = client_app(ALGORITHM, H, training)
server = ServerApp()


@server.main()
def main(grid, context):
    strategy = ProxfedStrategy(ALGORITHM, H, min_available_nodes=10)
    strategy.start(grid, arrays(NETWORK), num_rounds=context.run_config["rounds"])
