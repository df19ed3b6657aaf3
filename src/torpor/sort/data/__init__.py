"""The records' path in a worker: inputs, sweep, runs, parts, merge, outputs, and the files that hold them."""
