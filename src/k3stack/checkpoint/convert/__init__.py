"""Converting a checkpoint from MXFP4 to NVFP4: codes are copied, scales looked up, attention becomes block FP8."""
