"""The list of commands, in the order of `localspec --help`."""

from localspec.cli.commands import (
    bench,
    chat,
    compare,
    doctor,
    fit,
    forget,
    info,
    pairs,
    prune,
    pull,
    rm,
    run,
    serve,
    tune,
    verify,
)
from localspec.cli.commands import list as list_command

ALL = (
    run,
    chat,
    serve,
    pull,
    pairs,
    info,
    list_command,
    rm,
    prune,
    forget,
    bench,
    compare,
    verify,
    tune,
    fit,
    doctor,
)
