"""Which arrays follow from which? Arrays in, arrays out: no files, no clock, no threads, no dice but by seed."""
