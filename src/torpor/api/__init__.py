"""What programs touch: JSON over HTTP."""
