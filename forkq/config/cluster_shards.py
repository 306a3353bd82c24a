"""The prefixes of ``[redis] cluster_shards``: shards in slots of one cluster that are far apart.

A prefix is made of ``[redis] prefix`` and of a table that never changes. It must not depend on the
nodes that there are: the jobs of a shard would no longer be found once a node joins.
"""

from __future__ import annotations

import re
from typing import Final

from ..wire.redis_url import SLOTS, slot_of

MOST: Final = 64
_BITS: Final = 6
# One tag of three letters in the middle of each 64th of the slots, in the order of the slots.
_TAGS: Final = (
    "xsdjwbpjprnkhptkvbqkpjdctvqfrwbhmvbfjrtgswmnxnhn"
    "xbfsmhhrwzvqphscnxxqgkwltgsnjmdwbgqtddcwbhttrfpt"
    "jvrxrtcmkxbxkwrhqdblkphmfsgkrdvcvdgpgrgdtqwbvrjm"
    "bnhpjntpthsgkfpqknjtqxpwvbxmmkgpddvrnhpllkfqdkpg"
)
_LETTERS: Final = 3
_NAME: Final = re.compile(r"s([1-9][0-9]?)")


def number_of(name: str) -> int:
    """Which shard of a cluster has that name: 3 for ``s3``; 0 if no such shard has it."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def prefix_of(prefix: str, number: int) -> str:
    """The prefix of the shard with that number, which ``[redis] prefix`` makes its own: two apps on
    one cluster share no key. Raises ConfigError if ``prefix`` has no name in braces.

    The shards 1, 2, 3 are half, a quarter and three quarters of all slots away from the default
    one, and so on. So the shards of any number are about as far apart as they can be, and one more
    changes no other one.
    """
    own = slot_of(prefix) * MOST // SLOTS
    away = int(f"{number:0{_BITS}b}"[::-1], 2)
    rest = prefix.replace("{", "", 1).replace("}", "", 1)
    first = (own + away) % MOST * _LETTERS
    return f"{{{_TAGS[first : first + _LETTERS]}}}{rest}"
