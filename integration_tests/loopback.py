"""Refuses connections to other machines during the tests: telemetry, price lists, a client's default address.

Input: nothing. Output: `guard` installs the check; `ATTEMPTS` lists the refused hosts. Invariants: each
attempt raises an error, and is listed even if the client catches that error. gRPC's C core opens its
connections unseen.
"""

import os
import socket
import sys
from urllib.parse import urlsplit

# Switches of clients that would otherwise send telemetry or download data.
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "LITELLM_OFFLINE_MODE": "true"}
LOOPBACK = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", None)
ATTEMPTS: list[str] = []
# The hosts of a deployment that its owner wants to attack (`resilience/target.py`).
ALLOWED: set[str] = set()


def guard() -> None:
    """From now on, this process cannot open a connection beyond loopback."""
    os.environ.update(QUIET)
    own = [os.environ.get("RESILIENCE_URL", ""), "//" + os.environ.get("RESILIENCE_GRPC", "")]
    for host in filter(None, (urlsplit(url).hostname for url in own)):
        ALLOWED.update([host, *(entry[4][0] for entry in socket.getaddrinfo(host, None))])
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in LOOPBACK and host not in ALLOWED:
        ATTEMPTS.append(host)
        print(f"{event} to {host}", file=sys.stderr)
        raise OSError(f"the tests reach for no other machine: {host}")
