"""The servers that are attacked, and where the results go. `target.py` says how a deployment of one's own is attacked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import ledger
import pytest
import target as targets
from server import Server
from target import Bystander, Target


@pytest.fixture
def target() -> Iterator[Callable[..., Target]]:
    """Gives what to attack: without arguments the deployment, if one is named. With flags (or another `model`) it is a
    new process in any case, and the test is skipped where a deployment is attacked. It must end in order."""
    with ExitStack() as stack:

        def get(*flags: str, model: str = "tied-bf16", environment: dict[str, str] | None = None) -> Target:
            own = flags or model != "tied-bf16" or environment
            if targets.URL:
                if own:
                    pytest.skip(f"RESILIENCE_URL is set: this needs a server of its own ({model} {' '.join(flags)})")
                return Target(None, targets.KEY)
            server = stack.enter_context(Server(model, *flags, environment=environment))
            key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else ""
            return Target(server, key)

        yield get


@pytest.fixture
def bystander() -> type[Bystander]:
    """A client that behaves: `with bystander(target) as others:`, then `others.lost`."""
    return Bystander


@pytest.fixture
def record() -> Callable[..., None]:
    """Writes a row of the table in docs/reliability.md. Results against a deployment are printed instead."""
    if targets.URL:
        return lambda *row: print("|", *row, sep=" | ")
    return ledger.record
