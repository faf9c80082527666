"""A rank that a test commands over a connection, one word a line; it is idle (ebb_idle_begin) while it waits for one."""

import socket

from ebbtest import OK


class Idle:
    def __init__(self, ebb):
        self.ebb, self.now = ebb, False

    def begin(self):
        if not self.now:
            assert self.ebb.lib.ebb_idle_begin() == OK, self.ebb.error()
            self.now = True

    def end(self):
        if self.now:
            assert self.ebb.lib.ebb_idle_end() == OK, self.ebb.error()
            self.now = False


def carry_out(address, rank, ebb, memory, words):
    """Says which rank it is to the test that listens at the address, and does what that one says, until "quit" or the end of the line:

    check   waits until the memory may be used, and says whether it holds what was written: memory is {address: Pattern}
    busy    is no longer idle, and comes to no safe point
    idle    is idle again

    words are the program's own: {word: function}. What a function returns is the answer.
    """
    idle = Idle(ebb)

    def check():
        idle.end()
        for place, pattern in memory.items():
            pattern.check(place)
        idle.begin()
        return "intact"

    words = {"check": check, "busy": idle.end, "idle": idle.begin, **words}
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rw", encoding="ascii") as test:
        idle.begin()
        print(rank, file=test, flush=True)
        for line in test:
            if line.strip() == "quit":
                break
            print(words[line.strip()]() or "ok", file=test, flush=True)
        idle.end()
