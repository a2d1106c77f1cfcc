import concurrent.futures
import socket
import ssl

import google.api_core.exceptions as google_errors
import google.auth.exceptions as sign_in_errors
import kfp_server_api
import pytest
import urllib3.exceptions as http_errors

from detloom.pipelines.backends.api_errors import ApiError, Server, shorten_message, translate_errors
from detloom.schemas.errors import InputError

SERVER = Server(name="The server", next_steps={"signed out": "sign in again"}, secrets=("s3cr3t",))


def answered(status, body, reason=""):
    error = kfp_server_api.ApiException(status=status, reason=reason)
    error.body = body
    return error


def translated(error):
    with pytest.raises(ApiError) as caught, translate_errors(SERVER, "submit the run"):
        raise error
    return caught.value


def unreachable(reason):
    return http_errors.MaxRetryError(None, "/apis", reason)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered(400, "{}"), "refused"),
        (answered(401, "{}"), "signed out"),
        (answered(403, "{}"), "forbidden"),
        (answered(404, "{}"), "not found"),
        (answered(409, "{}"), "exists"),
        (answered(413, "{}"), "refused"),
        (answered(429, "{}"), "quota"),
        (answered(302, ""), "signed out"),
        (answered(500, "{}"), "server"),
        (answered(503, "{}"), "server"),
        (answered(504, "{}"), "timeout"),
        (answered(0, None, "SSLError\nno certificate"), "tls"),
        (answered(0, None, "Failed to parse `x` as datetime object"), "server"),
        (unreachable(http_errors.NewConnectionError(None, "refused")), "unreachable"),
        (unreachable(http_errors.SSLError("certificate verify failed")), "tls"),
        (unreachable(http_errors.ReadTimeoutError(None, "/", "Read timed out.")), "timeout"),
        (unreachable(http_errors.ConnectTimeoutError(None, "timed out")), "unreachable"),
        (http_errors.ProtocolError("Connection aborted."), "unreachable"),
        (google_errors.Unauthenticated("m"), "signed out"),
        (google_errors.PermissionDenied("m"), "forbidden"),
        (google_errors.ResourceExhausted("m"), "quota"),
        (google_errors.NotFound("m"), "not found"),
        (google_errors.AlreadyExists("m"), "exists"),
        (google_errors.Aborted("m"), "server"),
        (google_errors.InvalidArgument("m"), "refused"),
        (google_errors.FailedPrecondition("m"), "refused"),
        (google_errors.InternalServerError("m"), "server"),
        (google_errors.Unknown("m"), "server"),
        (google_errors.DeadlineExceeded("m"), "timeout"),
        (google_errors.RetryError("m", None), "timeout"),
        (google_errors.ServiceUnavailable("failed to connect to all addresses"), "unreachable"),
        (google_errors.ServiceUnavailable("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED"), "tls"),
        (google_errors.ServiceUnavailable("Getting metadata from plugin failed with error: x"), "signed out"),
        (sign_in_errors.DefaultCredentialsError("m"), "signed out"),
        (sign_in_errors.RefreshError("m"), "signed out"),
        (sign_in_errors.TransportError("m"), "unreachable"),
        (ssl.SSLError("m"), "tls"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (ConnectionResetError("m"), "unreachable"),
        (concurrent.futures.TimeoutError("Operation did not complete"), "timeout"),
    ],
)
def test_each_exception_has_its_kind(error, kind):
    assert translated(error).kind == kind
    assert isinstance(translated(error), InputError)


def test_the_message_contains_server_action_reason_and_next_step():
    message = str(translated(answered(401, '{"message": "the token is s3cr3t"}')))
    assert message == (
        "The server: could not submit the run: the credentials were rejected; they may have expired "
        "('the token is (hidden)'); sign in again."
    )


def test_the_servers_message_is_shown_for_each_response_format():
    assert "('Max concurrency must be 10')" in str(
        translated(answered(400, '{"error": "Max concurrency must be 10."}'))
    )
    assert "('Jwt is expired')" in str(translated(answered(401, "Jwt is expired")))
    assert "html" not in str(translated(answered(502, "<html>Bad gateway</html>")))
    assert "('quota cpus exceeded')" in str(translated(google_errors.ResourceExhausted("quota cpus exceeded")))
    assert "('Connection refused')" in str(
        translated(unreachable(http_errors.NewConnectionError(None, "Failed to connect: Connection refused")))
    )


@pytest.mark.parametrize("body", ['["a"]', '{"message": {"a": 1}}', '"text"', "", None])
def test_an_error_with_an_unexpected_body_is_reported(body):
    error = translated(answered(500, body))
    assert error.kind == "server"
    assert "submit the run" in str(error)


def test_a_timeout_of_an_operation_is_reported():
    error = translated(concurrent.futures.TimeoutError())
    assert error.kind == "timeout"
    assert "submit the run" in str(error)


def test_other_exceptions_are_not_converted():
    with pytest.raises(ZeroDivisionError), translate_errors(SERVER, "x"):
        raise ZeroDivisionError


def test_a_long_message_keeps_its_beginning_and_end():
    text = "Failed to create a run: " + "wrapped: " * 100 + "the pipeline spec is invalid."
    short = shorten_message(text)
    assert short.startswith("Failed to create a run: wrapped:")
    assert short.endswith("the pipeline spec is invalid")
    assert len(short) == 304  # twice 150 of the text and 5 for " ... ", less the full stop


def test_secrets_in_messages_are_hidden():
    text = "GET https://ann:hunter2@x/y?key=abc with 'Authorization: Bearer eyJhbGci' and \x1b[31mred\n"
    short = shorten_message(text)
    assert short == "GET https://(hidden)@x/y?key=(hidden) with 'Authorization: Bearer (hidden) and \\x1b[31mred"
