"""A bar on stderr while tokens come."""

import sys
import time

_WIDTH = 24
_INTERVAL_S = 0.1


class Progress:
    """Draws only on a terminal, and clears its line at the end. Not thread-safe."""

    def __init__(self, total, unit="tokens", file=sys.stderr):
        self._total = total  # 0: unknown
        self._unit = unit
        self._file = file
        self._enabled = file.isatty()
        self._start = self._drawn = time.monotonic()
        self._done = 0

    def add(self, amount):
        self._done += amount
        now = time.monotonic()
        if self._enabled and now - self._drawn >= _INTERVAL_S:
            self._drawn = now
            self._file.write("\r" + self.line(now - self._start) + "\x1b[K")
            self._file.flush()

    def line(self, elapsed_s):
        rate = self._done / elapsed_s if elapsed_s > 0 else 0.0
        if not self._total:
            return f"{self._done} {self._unit}, {rate:.1f}/s"
        share = min(1.0, self._done / self._total)
        bar = "#" * round(share * _WIDTH)
        return f"[{bar:<{_WIDTH}}] {self._done}/{self._total} {self._unit}, {rate:.1f}/s"

    def close(self):
        if self._enabled:
            self._file.write("\r\x1b[K")
            self._file.flush()
