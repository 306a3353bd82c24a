"""What is about several shards at once: a queue that moves, and how busy each shard is."""
