"""The largest step that fits a device, the effect of memory techniques, and changes that make a job fit."""
