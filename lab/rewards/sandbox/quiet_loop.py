"""Run a coroutine without a socket pair or epoll, which the lock refuses: timers and tasks only.

`asyncio.sleep`, `gather`, `wait_for`, locks and queues work; network, subprocesses and threads cannot exist here anyway.
"""

import time


def run(coroutine):
    """The coroutine's result. Imports asyncio on first use: most reward functions are not asynchronous."""
    import asyncio

    class QuietLoop(asyncio.BaseEventLoop):
        def __init__(self):
            super().__init__()
            self._selector = _NothingToWatch()

        def _process_events(self, events):
            pass

        def _write_to_self(self):
            pass

    loop = QuietLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _NothingToWatch:
    def select(self, timeout):
        if timeout is None:
            raise RuntimeError("this coroutine waits for something that can never happen here (no network, no threads)")
        time.sleep(timeout)
        return []
