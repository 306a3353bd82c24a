"""From forkq.toml, variables and flags to one Config."""
