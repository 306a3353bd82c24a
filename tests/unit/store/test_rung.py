"""A wait for an event of asyncio."""

from __future__ import annotations

import asyncio

import pytest

from forkq.store.loop.rung import rung


def test_it_ends_when_the_bell_is_set_and_when_the_time_is_up() -> None:
    async def main() -> None:
        bell = asyncio.Event()
        await rung(bell, 0.001)
        assert not bell.is_set()
        asyncio.get_running_loop().call_soon(bell.set)
        await rung(bell, 3600)
        assert not bell.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_cancel_that_comes_with_the_bell_is_not_forgotten(turns: int) -> None:
    """With ``asyncio.wait_for`` it is, up to Python 3.11, one turn later."""

    async def main() -> None:
        bell = asyncio.Event()

        async def waits() -> None:
            while True:
                await rung(bell, 3600)

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        bell.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        _, waiting = await asyncio.wait([task], timeout=10)
        assert not waiting

    asyncio.run(main())
