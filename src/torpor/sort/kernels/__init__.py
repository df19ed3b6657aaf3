"""Pure functions from arrays to arrays: no files, no clock, no threads; random numbers only from a seed."""
