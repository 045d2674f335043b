"""Price lists fetched when the user says so: read, checked row by row and as a whole, and kept with their source and date."""
