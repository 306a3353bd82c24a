"""What a periodic job is. No Redis library."""
