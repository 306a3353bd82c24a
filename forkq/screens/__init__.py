"""What every screen shows, in a browser or a terminal: facts, problems in words, actions."""
