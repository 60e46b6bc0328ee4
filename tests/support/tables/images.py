"""Images of servers for tests: begun, written and ended as the trainer that leads a cut does it."""

from __future__ import annotations

from pathlib import Path

from pslib.checkpoint import ManifestFile
from pslib.client.client import Client
from pslib.wire.messages import BeginSave, EndSave, Result, SaveFiles
from tests.support.waiting import PATIENCE_S


def begin_image(client: Client, folder: Path, token: str, base: str = "", keep: bool = False) -> None:
    for rank, server in _servers(client):
        client.endpoint.ask(server, BeginSave(str(folder), f"{token}-{rank:03d}", base, keep)).wait()


def files_of_image(client: Client, token: str) -> list[ManifestFile]:
    entries = []
    for rank, server in _servers(client):
        answer = client.endpoint.ask(server, SaveFiles(f"{token}-{rank:03d}"), PATIENCE_S).wait()
        assert isinstance(answer, Result)
        entries += [ManifestFile(**entry) for entry in answer.values["files"]]
    return entries


def end_image(client: Client, token: str, committed: bool = True) -> None:
    for rank, server in _servers(client):
        client.endpoint.ask(server, EndSave(f"{token}-{rank:03d}", token, committed)).wait()


def _servers(client: Client) -> list[tuple[int, str]]:
    """Ranks and addresses of the servers that are there."""
    return [(rank, server) for rank, server in enumerate(client.servers) if server]
