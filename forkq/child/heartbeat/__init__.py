"""What a child tells Redis about itself."""
