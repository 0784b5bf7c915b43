"""A clock that tests turn: what is timed by it takes what they say, however busy the machine."""

import time


class Clock:
    """Stands for `time.perf_counter` and `time.sleep`, on every thread, while a test runs.

    Sleeping moves the clock and takes no time. Each look at it takes a microsecond, so that a
    loop which waits for time to pass ends.
    """

    def __init__(self, monkeypatch):
        self.seconds = 1000.0
        monkeypatch.setattr(time, "perf_counter", self.look)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def look(self):
        self.seconds += 1e-6
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
