"""What runs first inside a workspace's container?

Started by file path with a bare interpreter. The program begins, and only then is loaded what stands between it and Torpor.
Both come compiled, which this file never does: so it is short.
"""

import os
import sys

if __name__ == "__main__":
    # Where `torpor.inside` lies, whatever lies beside it. Behind the standard library, of which nothing may be replaced.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from torpor.inside.program import read_orders, start_program

    begun = start_program(read_orders())
    from torpor.inside.agent import main

    main(begun)
