"""Runs the server as a child process of this program.

Input: a model, and the server's flags as keyword arguments. Output: a `Server`, which starts the binary,
waits until it is ready, passes its log to Python's `logging`, writes the progress of a download to stderr,
and stops it. Invariants: the server ends when this program ends, for whatever reason, because the server
watches a pipe that only this process holds open; every failure is one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from types import TracebackType

from ._binary import COLOUR_VARIABLES, environment_without, find_binary, known_flags
from ._client import AsyncClient, Client
from ._errors import FlagError, ServerStartError
from ._protocol import ClientSettings

LOGGER = logging.getLogger("text_embeddings_router.server")
LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG, "TRACE": 5}
READY = re.compile(r"Ready: listening on (\S+):(\d+)")
# The modules whose events tell the progress of a download.
DOWNLOAD_TARGETS = ("text_embeddings_core::files::progress", "text_embeddings_core::files::hub::transfer")
# Flags that this module sets itself; and those for TLS, for which a local client has no certificate.
OWN_FLAGS = {"model_id", "models_file", "json_output", "stop_with_stdin"}
TLS_FLAGS = {"tls_cert", "tls_key"}
# Passed as variables of the same name, because others can read arguments in the list of processes.
SECRET_FLAGS = {"api_key", "hf_token", "otlp_endpoint"}
# The server stops within the sum of these flags (with the server's defaults) and a margin.
STOP_FLAGS = {"shutdown_delay": 0.0, "drain_timeout": 25.0}
STOP_MARGIN = 10.0
# Number of lines that are kept for the error of a failed start.
KEPT_LINES = 50

FlagValue = str | int | float | bool | os.PathLike[str] | list[str] | None


def serve(
    model_id: str | os.PathLike[str],
    *,
    start_timeout: float = 1800.0,
    client: ClientSettings | None = None,
    progress: bool = True,
    **flags: FlagValue,
) -> Server:
    """A server for a model, as a context manager that gives a client.

        with text_embeddings_router.serve("demo") as client:
            client.rerank("red planet", ["Bread is baked.", "Mars is red."])

    `model_id` is a Hub id, a folder, `demo`, or a models file (`models.toml`) with several models. `flags`
    are the server's flags: `max_batch_tokens=4096` is `--max-batch-tokens 4096`. The server listens on
    127.0.0.1, on a free port unless `port` is given. `start_timeout` (seconds) includes the download of the
    model. `client` has the client's settings `timeout`, `attempts` and `longest_pause`. With `async with`,
    the client is an `AsyncClient`. `progress` says whether the progress of a download is written to stderr.

    In a notebook, call `start` and `stop` instead of a block:

        server = text_embeddings_router.serve("demo").start()
        client = server.client()
        server.stop()
    """
    return Server(model_id, start_timeout=start_timeout, client=client, progress=progress, **flags)


class Server:
    """The process of a server. `start` and `stop` it, or use a `with` block, which does both."""

    def __init__(
        self,
        model_id: str | os.PathLike[str],
        *,
        start_timeout: float = 1800.0,
        client: ClientSettings | None = None,
        progress: bool = True,
        **flags: FlagValue,
    ):
        self._shows_progress = progress
        self._binary = find_binary()
        self._arguments, self._environment = _command_line(model_id, flags, known_flags(self._binary))
        self._start_timeout = start_timeout
        self._client_settings: ClientSettings = client or {}
        seconds = [_seconds(name, default, flags) for name, default in STOP_FLAGS.items()]
        self._stop_timeout = sum(seconds) + STOP_MARGIN
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int | None = None
        self._pipe: int | None = None
        self._reader: threading.Thread | None = None
        self._address: tuple[str, int] | None = None
        # Set when the server is ready, when it has ended, and when the task that starts it was cancelled.
        self._ready = threading.Event()
        self._is_abandoned = False
        self._other_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None

    @property
    def url(self) -> str:
        """The server's address, such as `http://127.0.0.1:40123`."""
        if self._address is None:
            raise RuntimeError("the server was not started")
        host, port = self._address
        # A server that listens on all addresses is reached at the loopback address.
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        return f"http://{host}:{port}"

    @property
    def pid(self) -> int | None:
        """The id of the process; None before the start."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float) -> int | None:
        """The exit code of the process if it ends within `timeout` seconds, else None."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def start(self) -> Server:
        """Starts the server and returns once it is ready.

        Raises `FlagError` if the server does not accept a flag, and `ServerStartError` if it does not start;
        both have the server's reason.
        """
        if self._process is not None:
            raise RuntimeError("the server was started before")
        # The server sees the end of this pipe when this process closes it or dies.
        read_end, self._pipe = os.pipe()
        _HELD_PIPES.add(self._pipe)
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C in a terminal is sent to this program only, which then stops the server.
                start_new_session=True,
            )
        except OSError as error:
            self._close_pipe()
            raise ServerStartError(f"{self._binary} cannot be run ({error.strerror})", None) from None
        finally:
            os.close(read_end)
        self._owner = os.getpid()
        self._reader = threading.Thread(target=self._read_log, name="text-embeddings-router log", daemon=True)
        self._reader.start()
        try:
            is_in_time = self._ready.wait(self._start_timeout)
            if self._is_abandoned:
                raise ServerStartError("the task that waited for it was cancelled", None)
            if self._address is None:
                raise self._start_error(is_in_time)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Asks the server to stop, and waits for requests in flight. Does nothing if it has ended."""
        # In a forked process, a copy of this object must not stop the server.
        if self._process is None or self._owner != os.getpid():
            return
        if self._client is not None:
            self._client.close()
            self._client = None
        process = self._process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self._stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._close_pipe()
        if self._reader is not None:
            self._reader.join(STOP_MARGIN)

    def client(self) -> Client:
        """A client of this server, with its key."""
        return Client(self.url, api_key=self._api_key, **self._client_settings)

    def async_client(self) -> AsyncClient:
        """A client of this server for asyncio, with its key."""
        return AsyncClient(self.url, api_key=self._api_key, **self._client_settings)

    def __enter__(self) -> Client:
        self.start()
        self._client = self.client()
        return self._client

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> AsyncClient:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread does not end with the task that waits for it.
            self._is_abandoned = True
            self._ready.set()
            with contextlib.suppress(ServerStartError):
                await starting
            await asyncio.to_thread(self.stop)
            raise
        self._async_client = self.async_client()
        return self._async_client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._async_client is not None:
                await self._async_client.close()
        finally:
            await asyncio.to_thread(self.stop)

    @property
    def _api_key(self) -> str | None:
        return self._environment.get("API_KEY") or None

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            _HELD_PIPES.discard(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def _read_log(self) -> None:
        """Passes the log on, line by line, and notices when the server is ready or has ended."""
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._pass_on(line.decode(errors="replace").rstrip())
        self._ready.set()

    def _pass_on(self, line: str) -> None:
        try:
            event = json.loads(line)
            level, message = LEVELS[event["level"]], str(event["message"])
        except (ValueError, KeyError, TypeError):
            # Not a line of the log, so it tells why the process ends.
            self._other_lines.append(line)
            LOGGER.debug("%s", line)
            return
        if not self._ready.is_set() and (found := READY.match(message)):
            self._address = found[1], int(found[2])
            self._ready.set()
        if LOGGER.isEnabledFor(level):
            shown = {"level", "message", "timestamp", "target", "span"}
            fields = " ".join(f"{name}={value}" for name, value in event.items() if name not in shown)
            LOGGER.log(level, "%s", f"{message} {fields}".rstrip())
        elif self._shows_progress and event.get("target") in DOWNLOAD_TARGETS:
            print(message, file=sys.stderr, flush=True)

    def _start_error(self, is_in_time: bool) -> ServerStartError:
        assert self._process is not None
        if not is_in_time:
            return ServerStartError(
                f"it was not ready within {self._start_timeout} s: give `start_timeout` more if the model is large", None
            )
        code = self._process.wait(STOP_MARGIN)
        lines = [line.strip() for line in self._other_lines]
        if code == 2:
            # The output of the command line's parser, up to its general advice.
            usage = next((at for at, line in enumerate(lines) if line.startswith(("Usage:", "For more"))), len(lines))
            return FlagError("; ".join(filter(None, lines[:usage])).removeprefix("error: "), code)
        if code < 0:
            return ServerStartError(f"it was ended by signal {-code} ({signal.Signals(-code).name})", code)
        said = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        return ServerStartError(said[-1] if said else " ".join(lines)[-500:] or f"it ended with exit code {code}", code)


def _command_line(
    model_id: str | os.PathLike[str], flags: dict[str, FlagValue], known: frozenset[str]
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of the process."""
    model = os.fspath(model_id)
    named_by = "--models-file" if model.endswith(".toml") else "--model-id"
    arguments = [str(find_binary()), named_by, model, "--json-output", "--stop-with-stdin"]
    environment = environment_without({name.upper() for name in TLS_FLAGS} | COLOUR_VARIABLES)
    environment["LOG_LEVEL"] = _log_filter()
    if sys.prefix != sys.base_prefix:
        # The server looks for ONNX Runtime, and for the interpreter of `--backend python`, where this runs.
        environment.setdefault("VIRTUAL_ENV", sys.prefix)
    defaults: dict[str, FlagValue] = {"hostname": "127.0.0.1", "port": 0, "prometheus_port": 0}
    for name, value in {**defaults, **flags}.items():
        if name in OWN_FLAGS:
            raise FlagError(f"`{name}` is set by `serve` itself: leave it out", None)
        if name in TLS_FLAGS:
            raise FlagError(f"`{name}`: `serve` has a client on this machine, without TLS; start the binary to serve others", None)
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean `{near[0]}`?" if near else "`text-embeddings-router --help` lists all flags"
            raise FlagError(f"the server has no flag `{name}`: {advice}", None)
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool) or name in SECRET_FLAGS:
            # Only a switch's variable accepts a value.
            environment[name.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            values = value if isinstance(value, list) else [value]
            # With `=`, a value may begin with a dash.
            arguments += [f"{flag}={os.fspath(one) if isinstance(one, os.PathLike) else one}" for one in values]
    if environment.get("API_KEY_FILE") or any(argument.startswith("--api-key-file=") for argument in arguments):
        if not environment.get("API_KEY"):
            raise FlagError("`api_key_file`: the client of `serve` needs a key, too: give it as `api_key`", None)
    return arguments, environment


def _seconds(name: str, default: float, flags: dict[str, FlagValue]) -> float:
    """The value of a flag or its variable, in seconds. The server itself refuses other values."""
    value = flags.get(name)
    text = str(value) if value is not None else os.environ.get(name.upper(), "")
    return float(text) if text.isdecimal() else default


def _log_filter() -> str:
    """The log level of Python's logger for the server. The line that it is ready is always there."""
    if LOGGER.isEnabledFor(logging.DEBUG):
        return "debug"
    if LOGGER.isEnabledFor(logging.INFO):
        return "info"
    downloads = ",".join(f"{target}=info" for target in DOWNLOAD_TARGETS)
    return f"warn,text_embeddings_router=info,text_embeddings_router::cost=warn,{downloads}"


# Pipe ends that only this process may hold: a forked child would keep the servers alive.
_HELD_PIPES: set[int] = set()


def _let_go_of_pipes() -> None:
    for pipe in _HELD_PIPES:
        os.close(pipe)
    _HELD_PIPES.clear()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_pipes)
