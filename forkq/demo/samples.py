"""The demo's own input: pictures of hills, sales as CSV and a harbour diary, made on the spot."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

_SIZE: Final = (1600, 1200)
_PICTURES: Final = 24
_TABLES: Final = 8
_ROWS: Final = 12_000
_TEXTS: Final = 8
_SENTENCES: Final = 8_000

_SKIES: Final = [
    ((24, 40, 92), (250, 176, 120)),
    ((98, 160, 216), (236, 240, 228)),
    ((60, 24, 80), (244, 120, 96)),
    ((16, 56, 72), (196, 224, 180)),
]
_SHOPS: Final = ["Bergen", "Galway", "Porto", "Split", "Tromso"]
_GOODS: Final = {"anchor": 89.0, "compass": 34.5, "lamp": 27.9, "net": 12.25, "rope": 4.75}
_WHO: Final = ["the pilot", "an old crew", "the keeper", "a stranger", "the cook", "our captain"]
_DID: Final = ["watched", "mended", "counted", "sold", "lost", "found", "painted", "carried"]
_WHAT: Final = ["the nets", "a lamp", "the harbour", "seven barrels", "the ropes", "a small boat"]
_WHEN: Final = ["at dawn", "before the rain", "all night", "on Sunday", "in the fog", "once more"]


def make(folder: Path, proceed: Callable[[], None]) -> None:
    """Fills ``folder``; the same files every time. Calls ``proceed`` now and then: it may raise."""
    folder.mkdir(parents=True)
    for number in range(1, _PICTURES + 1):
        proceed()
        _picture(random.Random(number)).save(folder / f"hills-{number:02}.jpg", quality=90)
    for number in range(1, _TABLES + 1):
        proceed()
        _table(random.Random(number), folder / f"sales-{2015 + number}.csv")
    for number in range(1, _TEXTS + 1):
        proceed()
        text = " ".join(_sentences(random.Random(number)))
        (folder / f"diary-{number}.txt").write_text(f"{text}\n", encoding="utf-8")


def make_torn(path: Path) -> None:
    """A picture whose second half is missing, as after a broken upload."""
    Image.effect_noise((640, 480), 64).save(path, "JPEG")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _picture(draw: random.Random) -> Image.Image:
    """Hills behind hills, each range darker than the one behind it, and a sun."""
    width, height = _SIZE
    high, low = draw.choice(_SKIES)
    shade = Image.linear_gradient("L").resize(_SIZE)
    picture = Image.composite(Image.new("RGB", _SIZE, low), Image.new("RGB", _SIZE, high), shade)
    pen = ImageDraw.Draw(picture)
    x, y, r = draw.uniform(0.15, 0.85) * width, draw.uniform(0.2, 0.5) * height, width / 18
    pen.ellipse((x - r, y - r, x + r, y + r), fill=(255, 240, 205))
    for layer in range(1, 7):
        near = layer / 6
        red, green, blue = (int(a + (b * 0.35 - a) * near) for a, b in zip(low, high, strict=True))
        ridge = list(_ridge(draw, height * (0.38 + 0.1 * layer), height * 0.09))
        pen.polygon([*ridge, (width, height), (0, height)], fill=(red, green, blue))
    return picture


def _ridge(draw: random.Random, base: float, swing: float) -> Iterator[tuple[float, float]]:
    waves = [
        (draw.uniform(0.5, 1) / n, n * draw.uniform(0.8, 1.6), draw.random()) for n in (1, 3, 8)
    ]
    for x in range(0, _SIZE[0] + 8, 8):
        rise = sum(a * math.sin(math.tau * (f * x / _SIZE[0] + p)) for a, f, p in waves)
        yield x, base - swing * rise


def _table(draw: random.Random, path: Path) -> None:
    goods = list(_GOODS.items())
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["day", "shop", "item", "quantity", "price"])
        for number in range(_ROWS):
            item, price = draw.choice(goods)
            paid = round(price * draw.uniform(0.8, 1.1), 2)
            rows.writerow([number // 33 + 1, draw.choice(_SHOPS), item, draw.randint(1, 12), paid])


def _sentences(draw: random.Random) -> Iterator[str]:
    for _ in range(_SENTENCES):
        words = (draw.choice(part) for part in (_WHEN, _WHO, _DID, _WHAT))
        yield f"{' '.join(words).capitalize()}."
