"""Every rule of the product, pure: no clock, no dice, no network, no files, no logging."""
