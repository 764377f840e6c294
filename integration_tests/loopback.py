"""Nothing that is tested here may reach for another machine: telemetry, price lists, a client's default address.

Input: nothing. Output: `ATTEMPTS`, what was tried; `guard` refuses it and writes it down. What must hold: whoever tries
gets an error, also where that is caught; the tests look at `ATTEMPTS` afterwards. What gRPC's C core does is not seen.
"""

import os
import socket
import sys
from urllib.parse import urlsplit

# Clients that ask before they tell.
QUIET = {"HAYSTACK_TELEMETRY_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "LITELLM_OFFLINE_MODE": "true"}
LOOPBACK = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", None)
ATTEMPTS: list[str] = []
# The machines of a deployment that its owner wants to be attacked (`resilience/target.py`).
ALLOWED: set[str] = set()


def guard() -> None:
    """From here on this process opens no connection beyond loopback."""
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
