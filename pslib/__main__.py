"""``python -m pslib``: the command ``pslib``, of the Python that runs it."""

import sys

from pslib.process.own_packages import main

sys.exit(main())
