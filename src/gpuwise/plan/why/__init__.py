"""Why a plan stands where it stands: what bounds it, its neighbours, what of the job would move it, and why it fell."""
