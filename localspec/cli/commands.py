"""The list of commands, in the order of `localspec --help`."""

from localspec.cli import doctor, pull, run

ALL = (run, pull, doctor)
