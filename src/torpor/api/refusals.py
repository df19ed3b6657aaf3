"""Answer refused and failed calls: `application/problem+json` (RFC 9457) with a stable `code`.

One table maps each code to its HTTP status.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from torpor.api.notices import no_such_page
from torpor.api.wire import to_json_value
from torpor.domain.errors import Failed, Refused, Unavailable

STATUS_OF: Mapping[str, int] = {
    "unauthorized": 401,
    "bad_credentials": 401,
    "sign_in_refused": 401,
    "bad_sign_in_link": 401,
    "forbidden": 403,
    "scope_missing": 403,
    "cross_site": 403,
    "wrong_password": 403,
    "bad_door_code": 403,
    "not_found": 404,
    "name_taken": 409,
    "name_reserved": 409,
    "is_deleted": 409,
    "not_deleted": 409,
    "purged": 409,
    "archive_collected": 409,
    "archive_damaged": 409,
    "restore_in_progress": 409,
    "no_restore": 409,
    "no_archive": 409,
    "not_in_error": 409,
    "in_error": 409,
    "say_which_way": 409,
    "not_running": 409,
    "last_administrator": 409,
    "too_many_tokens": 409,
    "unconfined": 409,
    "not_switching": 409,
    "bad_runtime": 422,
    "bad_name": 422,
    "bad_username": 422,
    "bad_password": 422,
    "bad_token": 422,
    "bad_wish": 422,
    "bad_ttl": 422,
    "bad_before_sleep": 422,
    "bad_environment": 422,
    "bad_secret": 422,
    "bad_size": 422,
    "bad_image": 422,
    "image_not_allowed": 422,
    "image_required": 422,
    "images_not_supported": 422,
    "packages_not_supported": 422,
    "bad_lease": 422,
    "bad_recovery": 422,
    "bad_cursor": 422,
    "bad_share": 422,
    "unknown_user": 422,
    "key_reused": 422,
    "bad_event_id": 422,
    "bad_request": 422,
    "no_such_archive": 422,
    "no_such_file": 404,
    "unknown_template": 422,
    "command_not_taken": 422,
    "command_required": 422,
    "command_invalid": 422,
    "output_too_large": 422,
    "took_too_long": 422,
    "limit_reached": 429,
    "too_many_sign_ins": 429,
    "too_many_streams": 429,
    "bad_secret_key": 503,
    "switching_runtime": 503,
    "disk_low": 507,
}

PROBLEM = "application/problem+json"
MOST_ERRORS = 20
"""The most errors in one answer. A body can have hundreds, and each is longer in the answer than in the body."""
# Refusals by the framework itself.
HTTP_CODES: Mapping[int, str] = {404: "no_such_call", 405: "method_not_allowed", 408: "too_slow", 413: "too_large"}

# The schema of errors, for the OpenAPI description.
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "An error (RFC 9457). `code` is stable; `detail` is for users.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {name: {"type": "string"} for name in ("type", "title", "detail", "code")} | {"status": {"type": "integer"}},
}


def problem(status: int, code: str, detail: str, context: Mapping[str, Any] | None = None) -> JSONResponse:
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if context and "retry_after_s" in context:
        headers["Retry-After"] = str(context["retry_after_s"])
    body = {"type": f"about:blank#{code}", "title": code.replace("_", " "), "status": status, "detail": detail, "code": code}
    told = {name: to_json_value(value) for name, value in (context or {}).items()}
    return JSONResponse({**told, **body}, status, headers, media_type=PROBLEM)


def is_for_a_person(request: Request) -> bool:
    """Whether a browser asks for a page. Calls of the API always get JSON."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")


def translate_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def _refused(_request: Request, refused: Refused) -> JSONResponse:
        return problem(STATUS_OF.get(refused.code, 400), refused.code, refused.message, refused.context)

    @app.exception_handler(Unavailable)
    async def _unavailable(_request: Request, out: Unavailable) -> JSONResponse:
        return problem(503, "unavailable", out.message, {"retry_after_s": 2})

    @app.exception_handler(Failed)
    async def _failed(_request: Request, failed: Failed) -> JSONResponse:
        return problem(502, failed.code.value.lower(), failed.message)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, invalid: RequestValidationError) -> JSONResponse:
        errors = invalid.errors()
        wrong = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in errors[:MOST_ERRORS]]
        if len(errors) > MOST_ERRORS:
            wrong.append(f"and {len(errors) - MOST_ERRORS} more")
        return problem(422, "bad_request", "; ".join(wrong), {"errors": wrong})

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, Refused):
            return await _refused(request, error.__cause__)
        if isinstance(error.__cause__, Unavailable):
            return await _unavailable(request, error.__cause__)
        if error.status_code == 400:
            # The body is not even text: answered like other bodies that the framework cannot read.
            return problem(422, "bad_request", str(error.detail))
        if error.status_code == 404 and is_for_a_person(request):
            return no_such_page(request.url.path)
        answer = problem(error.status_code, HTTP_CODES.get(error.status_code, "http"), str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def _broke(_request: Request, error: Exception) -> JSONResponse:
        # The server logs the error in full; the client learns only its type.
        return problem(500, "internal", f"an unexpected error ({type(error).__name__}); the server's log has the details")
