"""Every error of this package: what went wrong, as a type of its own, with the server's own sentence.

What must hold: all are `TextEmbeddingsError`s; an error of a request has the server's kind, one class for each.
"""

from __future__ import annotations


class TextEmbeddingsError(Exception):
    """Any error of this package."""


class BinaryNotFoundError(TextEmbeddingsError):
    """The server's binary is not where the wheel puts it."""


class ServerStartError(TextEmbeddingsError):
    """The server did not start: `reason` is its own sentence, `exit_code` that of its process (None: it was stopped)."""

    def __init__(self, reason: str, exit_code: int | None):
        super().__init__(f"the server did not start: {reason}")
        self.reason = reason
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[ServerStartError], tuple[str, int | None]]:
        # An exception travels between processes, such as Ray's, by the arguments of its class.
        return type(self), (self.reason, self.exit_code)


class FlagError(ServerStartError):
    """A flag of `serve` that the server does not know, or a value that it does not take."""


class ServerUnreachableError(TextEmbeddingsError):
    """No connection to the server, or one that broke off."""


class AnswerTimeoutError(TextEmbeddingsError):
    """No answer within the client's `timeout`."""


class RequestError(TextEmbeddingsError):
    """The server answered with an error. `status` is HTTP's, `kind` the server's word, `message` its sentence."""

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
    """The request is not valid: a field, too many texts, too many bytes, a text that is too long and must not be cut."""


class TokenizationError(RequestError):
    """The tokenizer failed on a text."""


class BackendError(RequestError):
    """The model failed, or is of another kind than the method needs."""


class OverloadedError(RequestError):
    """The server stayed busy for all attempts."""


class UnhealthyError(RequestError):
    """The server does not compute, or is stopping, and stayed so for all attempts."""


class UnauthorizedError(RequestError):
    """The key is missing or wrong."""


# By the server's word for the kind, which is in the body of every error.
BY_KIND: dict[str, type[RequestError]] = {
    "Empty": EmptyInputError,
    "Validation": ValidationError,
    "Tokenizer": TokenizationError,
    "Backend": BackendError,
    "Overloaded": OverloadedError,
    "Unhealthy": UnhealthyError,
    "Unauthorized": UnauthorizedError,
}
