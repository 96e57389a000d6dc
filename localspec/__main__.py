"""`python -m localspec` is the command line."""

import sys

from localspec.cli import main

sys.exit(main())
