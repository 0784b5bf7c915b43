"""A driver that hands out numbers for memory: for tests of what counts it."""


class Driver:
    """Hands out numbers for memory, and knows what is in use."""

    def __init__(self, total_bytes=10**6):
        self.total_bytes, self.live, self.calls = total_bytes, 0, 0
        self.stream = 0  # the current one

    def allocate(self, nbytes):
        self.calls += 1
        if self.live + nbytes > self.total_bytes:
            raise MemoryError
        return Memory(self, nbytes)


class Memory:
    def __init__(self, driver, nbytes):
        self.driver, self.nbytes, self.pointer = driver, nbytes, 256 * driver.calls
        driver.live += nbytes

    def __del__(self):
        self.driver.live -= self.nbytes
