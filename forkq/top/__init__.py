"""``forkq top``: the screens of the web UI in a terminal."""
