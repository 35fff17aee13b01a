"""The one error that the API answers with: a status and a sentence. Owns the documented sentences, decides nothing."""

from __future__ import annotations

from http import HTTPStatus


class ApiError(Exception):
    """Becomes ``{"error": message, "status": status}`` with that status."""

    def __init__(self, message: str, status: HTTPStatus) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def bad_body(what: str) -> ApiError:
    return ApiError(f"bad request body: {what}", HTTPStatus.BAD_REQUEST)


def missing(field: str) -> ApiError:
    return ApiError(f"missing required field: {field}", HTTPStatus.BAD_REQUEST)


def no_proxy() -> ApiError:
    return ApiError("proxy not found", HTTPStatus.NOT_FOUND)


def proxy_exists() -> ApiError:
    return ApiError("proxy already exists", HTTPStatus.CONFLICT)


def no_toxic() -> ApiError:
    return ApiError("toxic not found", HTTPStatus.NOT_FOUND)


def toxic_exists() -> ApiError:
    return ApiError("toxic already exists", HTTPStatus.CONFLICT)


def no_such_stream() -> ApiError:
    return ApiError("stream was invalid, can be either upstream or downstream", HTTPStatus.BAD_REQUEST)


def no_such_type() -> ApiError:
    return ApiError("invalid toxic type", HTTPStatus.BAD_REQUEST)


def not_listening(listen: str, why: str) -> ApiError:
    """The socket could not be had: the server's own failure, so 500."""
    return ApiError(f"listen tcp {listen}: {why}", HTTPStatus.INTERNAL_SERVER_ERROR)
