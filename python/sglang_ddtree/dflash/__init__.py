"""The file format of DFlash drafters."""
