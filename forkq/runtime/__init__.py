"""What the master, its children and the clock share."""
