"""What went wrong with a call, with the details that the server sends along."""

from comoe.dynamic_messages import make_messages

_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"

# Of google.rpc, as far as CoMoE uses it.
_RPC = make_messages("google.rpc", {
    "Status": [("code", 1, "int32", False), ("message", 2, "string", False), ("details", 3, "Any", True)],
    "Any": [("type_url", 1, "string", False), ("value", 2, "bytes", False)],
    "BadRequest": [("field_violations", 1, "FieldViolation", True)],
    "FieldViolation": [("field", 1, "string", False), ("description", 2, "string", False)],
    "RetryInfo": [("retry_delay", 1, "Duration", False)],
    "Duration": [("seconds", 1, "int64", False), ("nanos", 2, "int32", False)],
    "ErrorInfo": [("reason", 1, "string", False), ("domain", 2, "string", False)],
})


class ComoeError(Exception):
    """A call that failed.

    code: grpc.StatusCode. message: for people. reason: the server's word for it, "" if it said none.
    field_violations: [(field path, description)]. retry_after_s: when to try again, None if the server did not say.
    """

    def __init__(self, code, message, reason="", field_violations=(), retry_after_s=None, retry_forbidden=False):
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        self.field_violations = list(field_violations)
        self.retry_after_s = retry_after_s
        self.retry_forbidden = retry_forbidden  # the server asked not to

    @classmethod
    def of(cls, rpc_error):
        """From a grpc.RpcError."""
        metadata = dict(rpc_error.trailing_metadata() or ())
        found = {"field_violations": []}
        status = _RPC["Status"].FromString(metadata.get(_DETAILS_KEY, b""))
        for detail in status.details:
            kind = detail.type_url.rpartition(".")[2]
            if kind == "BadRequest":
                found["field_violations"] += [(violation.field, violation.description) for violation in
                                              _RPC["BadRequest"].FromString(detail.value).field_violations]
            elif kind == "RetryInfo":
                delay = _RPC["RetryInfo"].FromString(detail.value).retry_delay
                found["retry_after_s"] = delay.seconds + delay.nanos * 1e-9
            elif kind == "ErrorInfo":
                found["reason"] = _RPC["ErrorInfo"].FromString(detail.value).reason
        if _PUSHBACK_KEY in metadata:
            pushback_ms = int(metadata[_PUSHBACK_KEY])
            if pushback_ms < 0:  # gRPC's convention
                found["retry_forbidden"] = True
            else:
                found.setdefault("retry_after_s", pushback_ms * 1e-3)
        return cls(rpc_error.code(), rpc_error.details() or "", **found)
