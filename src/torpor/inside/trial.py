"""Start a program as a workspace's user, without an agent, and end with its exit code.

Run by file path like `start`. Torpor uses it to check whether such a user can run programs on this machine.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from torpor.inside.program import read_orders, start_program

    raise SystemExit(start_program(read_orders()).program.wait())
