"""Split learning in Flower: a client with its images, a server with labels, and a recording for privkit at the end.

`flwr run .` trains it; `privkit audit --recorded recording` attacks what the client released.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits
from torch import Tensor, nn

import privkit

client_app = ClientApp()
server_app = ServerApp()
digits = load_digits()
x, y = torch.tensor(digits.images / 16).float().unsqueeze(1), torch.tensor(digits.target)


class Noise(nn.Module):
    """The client's defense."""

    def forward(self, smashed: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        return smashed + 0.5 * torch.randn_like(smashed)


def client_of(context: Context) -> nn.Module:
    """The client's module, with the weights of the last round."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), Noise())
    if "client" in context.state:
        module.load_state_dict(context.state["client"].to_torch_state_dict())
    return module


def released(module: nn.Module, message: Message) -> tuple[Tensor, Tensor]:
    """The smashed data of one round's images, with this round's noise, and the images' labels."""
    number = int(message.content["round"]["number"])
    rows = torch.randperm(1000, generator=torch.Generator().manual_seed(number))[:50]
    torch.manual_seed(number + 1)
    return module(x[rows]), y[rows]


@client_app.train("forward")
def forward(message: Message, context: Context) -> Message:
    """Send smashed data and labels to the server."""
    smashed, labels = released(client_of(context), message)
    arrays = ArrayRecord([smashed.detach().numpy(), labels.numpy()])
    return Message(RecordDict({"release": arrays}), reply_to=message)


@client_app.train("backward")
def backward(message: Message, context: Context) -> Message:
    """Update the client's weights with the gradient that the server returned."""
    module = client_of(context)
    gradient = torch.from_numpy(message.content["gradient"].to_numpy_ndarrays()[0])
    released(module, message)[0].backward(gradient)
    torch.optim.SGD(module.parameters(), lr=0.3).step()
    context.state["client"] = ArrayRecord(module.state_dict())
    return Message(RecordDict(), reply_to=message)


@client_app.query()
def record(message: Message, context: Context) -> Message:
    """Write a recording of ten batches of the client's images, sent with the current weights."""
    module, recorder = client_of(context), privkit.Recorder()
    for rows in torch.arange(200).split(20):
        recorder(module(x[rows]), x=x[rows], y=y[rows])
    recorder.save(str(message.content["to"]["folder"]), name="noise", own=x[1000:1500], lower=module)
    return Message(RecordDict(), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the first connected client, then ask it for a recording."""
    node = next(iter(grid.get_node_ids()))
    server = nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    optimizer = torch.optim.SGD(server.parameters(), lr=0.3)

    def ask(kind: str, **content: ArrayRecord | ConfigRecord) -> RecordDict:
        sent = Message(RecordDict(dict(content)), dst_node_id=node, message_type=kind)
        (reply,) = grid.send_and_receive([sent])
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        return reply.content

    for number in range(int(context.run_config["rounds"])):
        of = ConfigRecord({"number": number})
        arrived, labels = map(torch.from_numpy, ask("train.forward", round=of)["release"].to_numpy_ndarrays())
        loss = nn.functional.cross_entropy(server(arrived.requires_grad_()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ask("train.backward", round=of, gradient=ArrayRecord([arrived.grad.numpy()]))
    ask("query", to=ConfigRecord({"folder": str(context.run_config["folder"])}))
    print(f"loss of the last round: {loss.item():.3f}")
