"""The list of commands, in the order of `localspec --help`."""

from localspec.cli.commands import (
    bench,
    chat,
    compare,
    completion,
    config,
    doctor,
    fit,
    forget,
    info,
    outdated,
    pairs,
    prune,
    pull,
    rm,
    run,
    serve,
    tune,
    verify,
)
from localspec.cli.commands import help as help_command
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
    outdated,
    forget,
    bench,
    compare,
    verify,
    tune,
    fit,
    doctor,
    config,
    completion,
    help_command,
)
