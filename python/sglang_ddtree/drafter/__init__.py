"""DFlash drafters: their checkpoints and how to tell whether one fits a target."""
