"""The errors of this package: a type for each kind of failure, with the server's own message.

Invariants: all are `TextEmbeddingsError`s; for each kind of error that the server names, there is one class.
"""

from __future__ import annotations


class TextEmbeddingsError(Exception):
    """Any error of this package."""


class BinaryNotFoundError(TextEmbeddingsError):
    """The server's binary is not where the wheel puts it."""


class ServerStartError(TextEmbeddingsError):
    """The server did not start. `reason` is its own message; `exit_code` is None if it was stopped."""

    def __init__(self, reason: str, exit_code: int | None):
        super().__init__(f"the server did not start: {reason}")
        self.reason = reason
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[ServerStartError], tuple[str, int | None]]:
        # Pickling uses these arguments, for example when Ray passes the error to another process.
        return type(self), (self.reason, self.exit_code)


class FlagError(ServerStartError):
    """The server does not know a flag of `serve`, or does not accept its value."""


class ServerUnreachableError(TextEmbeddingsError):
    """There is no connection to the server, or it broke off."""


class AnswerTimeoutError(TextEmbeddingsError):
    """There was no answer within the client's `timeout`."""


class RequestError(TextEmbeddingsError):
    """The server answered with an error. `status` is the HTTP status, `kind` the server's name for the kind
    of error, `message` its message."""

    def __init__(self, status: int, kind: str, message: str, attempts: int = 1):
        after = f" after {attempts} attempts" if attempts > 1 else ""
        super().__init__(f"{message} ({status} {kind}{after})")
        self.status = status
        self.kind = kind
        self.message = message
        self.attempts = attempts

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str, str, int]]:
        return type(self), (self.status, self.kind, self.message, self.attempts)


class EmptyInputError(RequestError):
    """A list, a text or a query is empty."""


class ValidationError(RequestError):
    """The request is not valid: a wrong field, too many texts or bytes, or a text that is too long and must
    not be truncated."""


class TokenizationError(RequestError):
    """The tokenizer failed on a text."""


class BackendError(RequestError):
    """The model failed, or the method needs another kind of model."""


class OverloadedError(RequestError):
    """The server stayed busy for all attempts."""


class UnhealthyError(RequestError):
    """The server was not computing, or was stopping, during all attempts."""


class UnauthorizedError(RequestError):
    """The key is missing or wrong."""


# By the server's name for the kind, which is in the body of every error.
BY_KIND: dict[str, type[RequestError]] = {
    "Empty": EmptyInputError,
    "Validation": ValidationError,
    "Tokenizer": TokenizationError,
    "Backend": BackendError,
    "Overloaded": OverloadedError,
    "Unhealthy": UnhealthyError,
    "Unauthorized": UnauthorizedError,
}
