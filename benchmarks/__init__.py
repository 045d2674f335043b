"""Programs that fit, check and time gpuwise; not part of the package."""
