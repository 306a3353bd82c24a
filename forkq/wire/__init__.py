"""The format that forkq shares with Sidekiq: payloads, keys, leases, times. No Redis library."""
