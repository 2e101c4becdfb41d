"""Checks of the address that a server is to listen on, made before a model is loaded."""

import argparse
import os
import socket
import ssl
from pathlib import Path

from dlm.cli.command_line import fail


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags alone: ranges, and which flags go together."""
    if not 0 <= args.port < 1 << 16:
        fail(f"--port is {args.port}: it takes 0 to 65535")
    if args.uds == "":
        fail("--uds is empty: it takes the path of a socket")
    if args.ssl_keyfile is not None and args.ssl_certfile is None:
        fail("--ssl-keyfile without --ssl-certfile: it takes both")
    if args.ssl_ca_certs is not None and args.ssl_certfile is None:
        fail("--ssl-ca-certs without --ssl-certfile: clients are only known over TLS")


def check(args: argparse.Namespace) -> None:
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
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
        Path(path).unlink()
    except OSError as error:
        fail(f"cannot listen on {path}: {error.strerror or error}")


def _check_certificate(certificate: str, key: str | None, authorities: str | None) -> None:
    given = {"certfile": certificate, "keyfile": key, "ca-certs": authorities}
    for name, path in given.items():
        try:
            if path is not None:
                Path(path).open("rb").close()
        except OSError as error:
            fail(f"cannot read --ssl-{name} {path}: {error.strerror}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        fail(f"--ssl-certfile {certificate} is no certificate with its key: {error}")
    try:
        if authorities is not None:
            context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        fail(f"--ssl-ca-certs {authorities} holds no certificates: {error}")
