"""Engine processes whose requests are performed by a handler of a test's own."""

import sys
import time

HEAD = """
import os, signal, time
from localspec.caches.store import later
from localspec.engine.messages import *
from localspec.engine.server import RequestLoop, take_pipes
from localspec.events import Kind, Notice, Origin, Piece, Source

class Handler:
    def runs_beside(self, request):
        return False

    def rest(self, awaited):
        pass

    def unsaved(self):
        return False

    def close(self):
        pass

class Workshop(Handler):
"""


def program(methods, **values):
    """The command of a process with these methods, in which each name stands for its value."""
    for name, value in values.items():
        methods = methods.replace(name, str(value))
    return (sys.executable, "-c", f"{HEAD}{methods}\nRequestLoop(*take_pipes()).serve(Workshop)")


def numbered(engine, *kinds, count=1):
    """The reports, each after the serial of its request, up to the first ones of these kinds."""
    found, deadline = [], time.monotonic() + 300
    while sum(isinstance(report, kinds) for _, report in found) < count:
        assert time.monotonic() < deadline, f"none of {kinds} in {found[-3:]}"
        found += engine.drain_numbered()
        time.sleep(0.005)
    return found


def until(engine, *kinds):
    """The reports, up to the first one of these kinds."""
    return [report for _, report in numbered(engine, *kinds)]
