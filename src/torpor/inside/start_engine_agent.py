"""Start the agent of an engine's container.

Run by file path with a bare interpreter. Other modules are loaded compiled; this file never is, so it is short.
"""

import os
import sys

if __name__ == "__main__":
    # The folder of `torpor.inside`, after the standard library, so that no module there is replaced.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    from torpor.inside.first_orders import main

    main()
