"""A server with the built-in model, started by a script that measures or checks it.

A request has one of three forms: chat completions, Responses and Messages. The form also reads the
events of its stream.
"""

import os
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dlm.cli.command_line import fail

SERVE = Path(__file__).parents[1] / "serve.py"
Body = dict[str, Any]
_START, _END = 120.0, 60.0  # seconds for the server to start, and to end


@contextmanager
def served(
    port: int, *flags: str, keys: tuple[str, ...] = (), files: int | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Provide a server that answers on `port` of this machine.

    `keys` are its API keys; it may open `files` files. Exits with code 1 if it does not start.
    """
    command = [sys.executable, str(SERVE), "--port", str(port), *flags]
    limit = files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    environment = os.environ | ({"DLM_API_KEYS": " ".join(keys)} if keys else {})
    server = subprocess.Popen(command, env=environment, preexec_fn=limit or None)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(_END)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _START
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    fail(f"scripts/serve.py ended, or did not start within {_START:g} seconds", 1)


def memory(pid: int) -> float:
    """Return the resident memory of a process in megabytes, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return next(sizes, 0) / 1024


@dataclass
class StreamedAnswer:
    """Answer of a stream, as far as it has arrived."""

    text: str = ""
    calls: list[str] = field(default_factory=list)  # the arguments of each call
    begun: bool = False  # whether any text, reasoning or call has arrived
    reason: str | None = None  # "length" if it was cut off
    done: bool = False
    tokens: int = 0
    error: str | None = None


class ApiForm(ABC):
    path: ClassVar[str]

    @abstractmethod
    def body(self, chat: Body) -> Body | None:
        """Return a chat's body in this form, streamed; None if this form can not express it."""

    @abstractmethod
    def read(self, event: Body, answer: StreamedAnswer) -> None:
        """Add an event to `answer`."""


class ChatForm(ApiForm):
    path = "/v1/chat/completions"

    def __init__(self, drafts: bool = False):
        self._options = {"include_usage": True, "drafts": drafts}

    def body(self, chat: Body) -> Body:
        return chat | {"stream": True, "stream_options": self._options}

    def read(self, event: Body, answer: StreamedAnswer) -> None:
        if "error" in event:
            answer.error = str(event["error"]["code"])
            return
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            delta = choice["delta"]
            answer.text += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                answer.calls += [""] if "id" in call else []
                answer.calls[-1] += call["function"]["arguments"]
            answer.begun |= bool(answer.text or answer.calls or delta.get("reasoning"))
            answer.reason = choice["finish_reason"] or answer.reason


class ResponsesForm(ApiForm):
    path = "/v1/responses"

    def body(self, chat: Body) -> Body:
        body = {name: chat[name] for name in _SHARED if name in chat}
        body |= {"input": chat["messages"], "max_output_tokens": chat["max_tokens"]}
        if "tools" in chat:
            body["tools"] = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
        if "response_format" in chat:
            schema = chat["response_format"]["json_schema"]
            body["text"] = {"format": {"type": "json_schema", **schema}}
        if "reasoning_effort" in chat:
            body["reasoning"] = {"effort": chat["reasoning_effort"]}
        return body | {"stream": True}

    def read(self, event: Body, answer: StreamedAnswer) -> None:
        match event["type"]:
            case "response.output_text.delta":
                answer.text += event["delta"]
            case "response.output_item.added":
                answer.begun = True
                answer.calls += [""] if event["item"]["type"] == "function_call" else []
            case "response.function_call_arguments.delta":
                answer.calls[-1] += event["delta"]
            case "response.failed":
                answer.error = str(event["response"]["error"]["code"])
            case "response.completed" | "response.incomplete":
                answer.done, answer.tokens = True, event["response"]["usage"]["output_tokens"]
                answer.reason = "length" if event["type"].endswith("incomplete") else "stop"


class MessagesForm(ApiForm):
    path = "/v1/messages"

    def body(self, chat: Body) -> Body | None:
        if "structured_outputs" in chat:
            return None
        body = {name: chat[name] for name in ("model", "messages", "max_tokens")}
        if "tools" in chat:
            functions = [tool["function"] for tool in chat["tools"]]
            body["tools"] = [
                {"name": one["name"], "input_schema": one["parameters"]} for one in functions
            ]
            body["tool_choice"] = {"type": "any"}
        if "response_format" in chat:
            schema = chat["response_format"]["json_schema"]["schema"]
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        if "reasoning_effort" in chat:
            body["thinking"] = {"type": "adaptive"}
            body.setdefault("output_config", {})["effort"] = chat["reasoning_effort"]
        return body | {"stream": True}

    def read(self, event: Body, answer: StreamedAnswer) -> None:
        match event["type"]:
            case "content_block_start":
                answer.begun = True
                answer.calls += [""] if event["content_block"]["type"] == "tool_use" else []
            case "content_block_delta":
                answer.text += event["delta"].get("text", "")
                if "partial_json" in event["delta"]:
                    answer.calls[-1] += event["delta"]["partial_json"]
            case "message_delta":
                cut = event["delta"]["stop_reason"] == "max_tokens"
                answer.reason = "length" if cut else event["delta"]["stop_reason"]
                answer.tokens = event["usage"]["output_tokens"]
            case "message_stop":
                answer.done = True
            case "error":
                answer.error = event["error"]["type"]


_SHARED = ("model", "seed", "tool_choice", "structured_outputs")
FORMS: dict[str, ApiForm] = {
    "chat": ChatForm(),
    "responses": ResponsesForm(),
    "messages": MessagesForm(),
}
