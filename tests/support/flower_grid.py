"""Flower's Grid without its processes: messages are written and read as Flower does, and handed to the ClientApp."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Here(Grid):
    """n nodes in this process."""

    def __init__(self, app: ClientApp, n: int) -> None:
        self.app = app
        self.contexts = {100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {}) for k in range(n)}
        self.lost: set[tuple[int, int]] = set()
        """(round, node): its reply does not arrive, though it has done its work."""
        self.silent: set[tuple[int, int]] = set()
        """(round, node): it fails."""
        self.bytes_up = self.bytes_down = 0
        """What Flower writes, all in all."""

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = "m"
            sent = message_to_proto(message).SerializeToString()
            self.bytes_down += len(sent)
            node = message.metadata.dst_node_id
            t = int(message.content["said"]["round"]) if "said" in message.content else 0
            if (t, node) in self.silent:
                continue
            reply = self.app(_read(sent), self.contexts[node])
            back = message_to_proto(reply).SerializeToString()
            self.bytes_up += len(back)
            if (t, node) not in self.lost:
                replies.append(_read(back))
        return replies

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError


def _read(data: bytes) -> Message:
    from flwr.proto.message_pb2 import Message as Written

    return message_from_proto(Written.FromString(data))
