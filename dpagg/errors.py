"""The errors a user can meet, one class a kind, each with the exit code of the command line.

A message says what was given, what was expected and what to do. It never holds a row value, a
label, a secret or the text of an exception raised by Spark.
"""

from __future__ import annotations

from typing import ClassVar


class DpaggError(Exception):
    """Base of every error that ``dpagg`` raises on purpose.

    Parameters
    ----------
    message
        What was given and what was expected; never a row value.
    path
        Dotted path of the setting concerned, such as ``privacy.delta``.
    remedy
        What to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, path: str | None = None, remedy: str | None = None) -> None:
        # Positional arguments stay in `args`, so that the error survives pickling between processes.
        super().__init__(message, path, remedy)
        self.message = message
        self.path = path
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.path, self.remedy))

    def __str__(self) -> str:
        text = self.message if self.path is None else f"{self.path}: {self.message}"
        if self.remedy is None:
            return text
        return f"{text.rstrip('.')}. {self.remedy}"


class ConfigError(DpaggError):
    """Wrong usage or configuration (exit code 2)."""

    exit_code: ClassVar[int] = 2


class PrivacyError(DpaggError):
    """Refused for privacy: a budget, a floor, a missing bound (exit code 3)."""

    exit_code: ClassVar[int] = 3


class DataError(DpaggError):
    """Input data that cannot be used (exit code 4)."""

    exit_code: ClassVar[int] = 4


class EnvironmentFault(DpaggError):
    """Something outside the project is missing or broken: Java, disk, an executor (exit code 5)."""

    exit_code: ClassVar[int] = 5


def _rebuild(kind: type[DpaggError], message: str, path: str | None, remedy: str | None) -> DpaggError:
    return kind(message, path=path, remedy=remedy)
