"""What runs first inside a workspace's container?

Started by file path with a bare interpreter. The program begins, and only then is loaded what stands between it and Torpor.
Both come compiled, which this file never does: so it is short.
"""

import os
import sys

if __name__ == "__main__":
    # Where `torpor.inside` lies, whatever lies beside it. Behind the standard library, of which nothing may be replaced.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from torpor.inside.program import begin, read_orders

    orders = read_orders()
    if orders.user is not None and not orders.alone:
        # Without a sandbox of its own the workspace's user may not be able to read our files.
        import torpor.inside.agent  # noqa: F401 - loaded, for what follows
    begun = begin(orders)
    from torpor.inside.agent import main

    main(begun)
