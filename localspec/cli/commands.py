"""The list of commands, in the order of `localspec --help`."""

from localspec.cli import doctor, info, pairs, pull, rm, run
from localspec.cli import list as list_command

ALL = (run, pairs, info, pull, list_command, rm, doctor)
