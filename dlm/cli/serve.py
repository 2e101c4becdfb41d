"""Serve a diffusion model over HTTP, as OpenAI's API and vLLM's users expect it.

    dlm serve                                  # the built-in model, on this machine
    dlm serve --model DIR --host 0.0.0.0 --api-key KEY --slots 16
    dlm serve --model DIR --replicas 4         # engines on Ray at one address

`docs/serving.md` has the routes, the fields and the metrics. Exit codes: 0 stopped by a signal, 2
bad usage, a bad model or an address that it cannot listen on, 130 interrupted while it starts.
"""

import argparse
import os
import signal
import socket
import ssl
import sys
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from dlm.cli.command_line import (
    CommandParser,
    check_counts,
    fail,
    flag_of,
    interruptible,
    open_streams,
    stop_at,
)
from dlm.cli.options import LOCAL_RAY, add_engine_options, add_ray, loading_of, model_names

if TYPE_CHECKING:
    from dlm.serving.protocol import Connections
    from dlm.serving.settings import Settings


LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONNECTIONS = (
    "max_header_bytes",
    "header_timeout",
    "max_connections",
    "max_connections_per_address",
)
HOSTS = (
    "The names that a request's Host may have; * is any. Default: this machine's own where there "
    "is no key, any where there is one."
)
RESERVED = (
    "How many slots are kept for clients that have none. Default: one for each key but the first, "
    "at most a fourth of the slots."
)
KEYS = "DLM_API_KEYS"  # environment variable with keys, separated by spaces; `ps` does not show it


def main() -> None:
    open_streams()
    stop_at(signal.SIGINT)
    args = arguments()
    try:
        import dlm
        from dlm.serving.records import owned
        from dlm.serving.settings import Settings
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: pip install 'dlm[serve]'")
    try:
        settings = Settings(
            names=model_names(args),
            slots=args.slots,
            max_queue=args.max_queue,
            api_keys=tuple(args.api_key),
            reserved_slots=reserved(args),
            allowed_origins=tuple(args.allowed_origins),
            allowed_hosts=allowed_hosts(args),
            root_path=args.root_path,
            request_ids=args.enable_request_id_headers,
            max_body_bytes=args.max_body_bytes,
            stored_responses=args.stored_responses,
            stored_file_bytes=args.stored_file_bytes,
        )
        if args.replicas is None:
            with nullcontext() if args.stored_files is None else owned(args.stored_files):
                serve_here(args, settings)
        else:
            serve_on_ray(args, settings)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except dlm.DlmError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: pip install 'dlm[serve]'")


def serve_here(args: argparse.Namespace, settings: "Settings") -> None:
    """Serve one engine in this process."""
    import uvicorn

    import dlm
    from dlm.cli.display import progress_bar
    from dlm.serving.protocol import Limits
    from dlm.serving.server import IDLE_SECONDS, DrainingServer
    from dlm.serving.service import app_of

    check_address(args)
    connections = connections_of(args)
    limits_given = {"head_bytes": args.max_header_bytes, "head_seconds": args.header_timeout}
    limits = Limits(**{name: value for name, value in limits_given.items() if value is not None})
    with progress_bar("warming up") as progress:
        engine = dlm.Engine.loaded(loading_of(args), progress)
    app, service = app_of(engine, settings, args.stored_files)
    config = uvicorn.Config(
        app,
        ws="none",
        host=args.host,
        port=args.port,
        uds=args.uds,
        root_path="",  # the application sets it
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=ssl.CERT_NONE if args.ssl_ca_certs is None else ssl.CERT_REQUIRED,
        log_level=args.log_level,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=10,
    )
    interruptible()
    DrainingServer(config, service, args.shutdown_timeout, connections, limits).run()


def serve_on_ray(args: argparse.Namespace, settings: "Settings") -> None:
    """Serve several engines, each in a process of its own, by Ray Serve.

    The first signal drains the server, the second ends running requests.
    """
    from dlm.integrations.ray import joined
    from dlm.integrations.ray.application import served

    listening = {
        "host": args.host,
        "port": args.port,
        "ssl_keyfile": args.ssl_keyfile,
        "ssl_certfile": args.ssl_certfile,
    }
    if args.ray is None:
        check_address(args)
    occurred = SimpleQueue[str]()
    interruptible()  # so that a Ray made here is shut down
    with (
        joined(args.ray or LOCAL_RAY, args.replicas) as cluster,
        served(
            cluster, loading_of(args), settings, args.replicas, args.log_level, **listening
        ) as server,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: occurred.put("signal"))

        def drain(seconds: float) -> None:
            server.drain(seconds)
            occurred.put("drained")

        occurred.get()
        Thread(target=drain, args=(args.shutdown_timeout,), daemon=True).start()
        if occurred.get() == "signal":
            server.drain(0)


def arguments() -> argparse.Namespace:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add_engine_options(parser, "requests run at once", "data")
    purpose = "The device of the model. Default: cuda if there is one, else cpu."
    add("--device", metavar="NAME", help=purpose)
    add("--reserved-slots", type=int, metavar="N", help=RESERVED)
    purpose = "How many requests may wait for a slot; more are answered with status 429."
    add("--max-queue", type=int, default=256, metavar="N", help=purpose)
    purpose = "Run this many engines, each in a process of its own, on Ray. Default: one, here."
    add("--replicas", type=int, metavar="N", help=purpose)
    purpose = "The Ray cluster of the replicas. Default: one that is made on this machine."
    add_ray(parser, purpose)
    purpose = "The address to listen on; one that other machines can reach needs an --api-key."
    add("--host", default="127.0.0.1", help=purpose)
    add("--port", type=int, default=8000, help="The port to listen on; 0 takes any that is free.")
    add("--uds", metavar="PATH", help="A Unix socket to listen on, instead of host and port.")
    purpose = f"A key that requests must have. May be given several times, or in {KEYS}."
    add("--api-key", action="append", default=[], metavar="KEY", help=purpose)
    purpose = "The origins of web pages that may use the server. Default: its own page only."
    add("--allowed-origins", nargs="+", default=[], metavar="URL", help=purpose)
    add("--allowed-hosts", nargs="+", metavar="NAME", help=HOSTS)
    purpose = "The path under which a proxy serves it, and which the proxy removes."
    add("--root-path", default="", metavar="PATH", help=purpose)
    purpose = "The most bytes of a request's body."
    add("--max-body-bytes", type=int, default=16 << 20, metavar="N", help=purpose)
    purpose = "The most responses that are kept for clients to continue; 0: none."
    add("--stored-responses", type=int, default=1000, metavar="N", help=purpose)
    purpose = "The most bytes of files that clients upload, and of batches' answers; 0: none."
    add("--stored-file-bytes", type=int, default=1 << 30, metavar="N", help=purpose)
    purpose = "The directory that keeps files and batches. Default: they end with the server."
    add("--stored-files", type=Path, metavar="DIR", help=purpose)
    purpose = "The most bytes of a request's headers. Default: 65536."
    add("--max-header-bytes", type=int, metavar="N", help=purpose)
    purpose = "How many seconds all headers of a request may take. Default: 20."
    add("--header-timeout", type=float, metavar="S", help=purpose)
    purpose = "The most connections at once. Default: 2048, or what ulimit -n leaves."
    add("--max-connections", type=int, metavar="N", help=purpose)
    purpose = "The most connections of one address. Default: half of --max-connections."
    add("--max-connections-per-address", type=int, metavar="N", help=purpose)
    add("--ssl-keyfile", metavar="FILE", help="The private key, to serve HTTPS.")
    add("--ssl-certfile", metavar="FILE", help="The certificate, to serve HTTPS.")
    purpose = "Authorities one of which must have signed a client's certificate."
    add("--ssl-ca-certs", metavar="FILE", help=purpose)
    purpose = "Send an X-Request-Id header with every answer."
    add("--enable-request-id-headers", action="store_true", help=purpose)
    purpose = "How many seconds running requests have to finish in after SIGTERM."
    add("--shutdown-timeout", type=float, default=60.0, metavar="S", help=purpose)
    levels = ("critical", "error", "warning", "info", "debug")
    add("--log-level", default="info", choices=levels, help="The least serious messages to log.")
    args = parser.parse_args()
    args.api_key += os.environ.get(KEYS, "").split()
    if not args.api_key and args.uds is None and args.host not in LOOPBACK:
        fail(f"--host {args.host} without --api-key: everybody could use the model")
    check_counts(args, "replicas", "threads")
    if args.replicas is None and args.ray is not None:
        fail("--ray without --replicas: say how many engines there are to be")
    if args.replicas is not None and args.ssl_ca_certs is not None:
        fail("--ssl-ca-certs with --replicas: Ray Serve asks no client for a certificate")
    if args.replicas is not None and args.uds is not None:
        fail("--uds with --replicas: Ray Serve listens on a host and a port")
    if args.stored_files is not None and (args.replicas is not None or not args.stored_file_bytes):
        fail("--stored-files with --replicas or --stored-file-bytes 0: no file is stored there")
    check_address_flags(args)
    for name in CONNECTIONS:
        flag, value = flag_of(name), getattr(args, name)
        if value is not None and not value > 0:
            fail(f"{flag} must be more than 0, got {value:g}")
        if value is not None and args.replicas is not None:
            fail(f"{flag} with --replicas: Ray Serve's proxies know no such bound")
    if args.shutdown_timeout < 0:
        fail(f"--shutdown-timeout must be at least 0 seconds, got {args.shutdown_timeout:g}")
    return args


def connections_of(args: argparse.Namespace) -> "Connections":
    """Return the book of connections, with the bounds that the flags and `ulimit -n` allow."""
    from dlm.serving.protocol import Connections, connections_allowed

    most = connections_allowed(args.max_connections, args.slots + args.max_queue)
    return Connections(most, args.max_connections_per_address or max(1, most // 2))


def allowed_hosts(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the names that a request's `Host` may have.

    A server with keys needs no check of `Host`. A server without keys would answer any request
    that a web page makes a browser on this machine send, so it takes the machine's own names only.
    """
    if args.allowed_hosts is not None:
        return tuple(
            name for argument in args.allowed_hosts for name in argument.split(",") if name
        )
    return ("*",) if args.api_key or args.uds is not None else ()


def reserved(args: argparse.Namespace) -> int:
    """Return the number of slots that are kept for clients without a running request.

    It is one for each key but the first, up to a fourth of all slots.
    """
    if args.reserved_slots is not None:
        return args.reserved_slots
    return max(0, min(len(args.api_key) - 1, args.slots // 4))


def check_address_flags(args: argparse.Namespace) -> None:
    """Check the flags alone: ranges, and which flags go together."""
    if not 0 <= args.port < 1 << 16:
        fail(f"--port must be 0 to 65535, got {args.port}")
    if args.uds == "":
        fail("--uds must be the path of a socket, got an empty text")
    if args.ssl_keyfile is not None and args.ssl_certfile is None:
        fail("--ssl-keyfile must have --ssl-certfile beside it")
    if args.ssl_ca_certs is not None and args.ssl_certfile is None:
        fail("--ssl-ca-certs without --ssl-certfile: clients are only known over TLS")


def check_address(args: argparse.Namespace) -> None:
    """Check that this machine can listen on the address and read the certificate."""
    if args.uds is not None:
        _check_socket(args.uds)
    else:
        _check_port(args.host, args.port)
    if args.ssl_certfile is not None:
        _check_certificate(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs)


def _check_port(host: str, port: int) -> None:
    """Check that the port is free. Ray's proxies would share it with another listener."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host or None, port, family)  # its error has words of its own
        socket.create_server((host, port), family=family).close()
    except socket.gaierror as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}")
    except UnicodeError as error:
        fail(f"cannot listen on {host}:{port}: {error}")
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}")


def _check_socket(path: str) -> None:
    """Check that a socket can be made at `path`. The server replaces a socket that exists."""
    if Path(path).is_socket():
        return
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        Path(path).unlink()
    except OSError as error:
        fail(f"cannot listen on {path}: {error.strerror or error}")


def _check_certificate(certificate: str, key: str | None, authorities: str | None) -> None:
    files = {"certfile": certificate, "keyfile": key, "ca-certs": authorities}
    for name, path in files.items():
        try:
            if path is not None:
                Path(path).open("rb").close()
        except OSError as error:
            fail(f"cannot read --ssl-{name} {path}: {error.strerror}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        fail(f"--ssl-certfile {certificate} must be a certificate with its key: {error}")
    try:
        if authorities is not None:
            context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        fail(f"--ssl-ca-certs {authorities} must hold certificates: {error}")
