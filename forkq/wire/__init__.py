"""The format shared with Sidekiq: payloads, keys, leases, times. No Redis library."""
