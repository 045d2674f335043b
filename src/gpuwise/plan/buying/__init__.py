"""What a run can be paid on: offers, machines at hand, and what gpuwise train can run by itself."""
