"""What only a CUDA GPU can tell, in one script of some minutes: `make gpu-check`."""
