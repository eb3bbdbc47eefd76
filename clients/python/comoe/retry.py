"""When a call is tried again."""

import dataclasses
import random

import grpc


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """A call is tried again only if nothing of its answer has come, and the server did not do the work:

    UNAVAILABLE (loading, draining, not there), and RESOURCE_EXHAUSTED if the server said when to come back (its queue is
    full; a message that is too large is not). It waits as long as the server says, or with exponential back-off and
    jitter, and never beyond the call's deadline.
    """

    max_attempts: int = 20
    first_delay_s: float = 0.2
    max_delay_s: float = 10.0

    def delay_s(self, error, attempt):
        """Seconds until attempt number `attempt` + 1, None to give up. The first attempt is number 1."""
        if attempt >= self.max_attempts or error.retry_forbidden:
            return None
        busy = error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_s is not None
        if not busy and error.code != grpc.StatusCode.UNAVAILABLE:
            return None
        longest = min(self.max_delay_s, self.first_delay_s * 2 ** (attempt - 1))
        backoff = longest * random.uniform(0.5, 1.0)
        return backoff if error.retry_after_s is None else error.retry_after_s + 0.1 * backoff


NEVER = RetryPolicy(max_attempts=1)
