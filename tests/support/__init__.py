"""What the tests share: servers, trees of forkq processes, and waiting for facts."""
