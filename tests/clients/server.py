"""The server of these tests: `dlm.serving` around a scripted model. It prints its port and serves
until its standard input ends."""

import socket
import sys
import threading

import uvicorn
from scripted_model import ScriptedModel

from dlm import DecodeConfig, Engine
from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.samplers import EntropyBound
from dlm.serving.protocol import Connections
from dlm.serving.server import IDLE_SECONDS, DrainingServer
from dlm.serving.service import app_of
from dlm.serving.settings import Settings


def main() -> None:
    names = tuple(sys.argv[1:])
    chat, config = (
        Chat.load(BUILT_IN),
        DecodeConfig(sampler=EntropyBound(max_steps=6, confidence=0.02), patience=3),
    )
    app, service = app_of(Engine(ScriptedModel(chat, config), chat, config), Settings(names=names))
    listener = socket.create_server(("127.0.0.1", 0))
    options = uvicorn.Config(app, log_level="warning", timeout_keep_alive=IDLE_SECONDS, ws="none")
    server = DrainingServer(options, service, 5, Connections(1000, 1000))

    def watch() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
