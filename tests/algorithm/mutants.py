"""Modules with a trap built in, to see that the tests which pass for the product fail for it."""

import inspect
import types


def mutant(module, *changes):
    """A copy of a module with lines of its source replaced."""
    source = inspect.getsource(module)
    for line, trap in changes:
        assert source.count(line) == 1, line
        source = source.replace(line, trap)
    copy = types.ModuleType(f"{module.__name__}.trapped")
    exec(compile(source, copy.__name__, "exec"), copy.__dict__)
    return copy
