"""A clock that tests turn: what is timed by it takes what they say, however busy the machine."""

import threading
import time


class Clock:
    """Stands for `time.perf_counter` and `time.sleep`, on every thread, while a test runs.

    Sleeping moves the clock and takes no time. Each look at it takes a microsecond, or what a test
    says, so that a loop which waits for time to pass ends.
    """

    def __init__(self, monkeypatch, look_seconds=1e-6):
        self.seconds, self.look_seconds = 1000.0, look_seconds
        self._lock = threading.Lock()  # no thread undoes another's step
        monkeypatch.setattr(time, "perf_counter", self.look)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def look(self):
        with self._lock:
            self.seconds += self.look_seconds
            return self.seconds

    def sleep(self, seconds):
        with self._lock:
            self.seconds += seconds
