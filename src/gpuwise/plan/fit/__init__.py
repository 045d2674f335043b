"""What fits a device, what each memory technique frees and costs, and what would make a job fit."""
