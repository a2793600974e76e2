"""Random numbers that are a pure function of a key and a row index, for whole arrays of rows at a time.

Never: keep state between rows: row 7 gets the same number whether it is drawn alone or among a million.

The mixing is that of splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). It is
part of what `headgate.datagen` promises: another mixing would be another set of rows.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Draws = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", dtype=np.uint8)
_PAIRS = np.stack([np.repeat(_ALPHABET, 32), np.tile(_ALPHABET, 32)], axis=1).copy().view(np.uint16).ravel()
_CHARACTERS_PER_DRAW = 12


def key_of(seed: int, column: str, purpose: str) -> int:
    """Return the key of one series of draws. The column's name counts without case, as everywhere in Spark."""
    text = f"{seed}\0{column.lower()}\0{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def draw(key: int, rows: Rows) -> Draws:
    """Return one number of 64 random bits per row."""
    bits = rows.astype(np.uint64)
    bits *= _STEP
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= _MIX_1
    bits ^= bits >> np.uint64(27)
    bits *= _MIX_2
    bits ^= bits >> np.uint64(31)
    return bits


def draw_below(key: int, rows: Rows, limit: int) -> Draws:
    """Return one number from 0 to ``limit - 1`` per row; ``limit`` is at most 2 ** 64."""
    bits = draw(key, rows)
    if limit == 1 << 64:
        return bits
    # Dividing by a scalar is several times faster in numpy than taking the remainder.
    quotients = bits // np.uint64(limit)
    quotients *= np.uint64(limit)
    bits -= quotients
    return bits


def draw_unit(key: int, rows: Rows) -> npt.NDArray[np.float64]:
    """Return one number from 0 to below 1 per row, of 53 random bits."""
    units = (draw(key, rows) >> np.uint64(11)).astype(np.float64)
    units *= 2.0**-53
    return units


def draw_text(key: int, rows: Rows, length: int) -> npt.NDArray[np.uint8]:
    """Return ``length`` characters a-z and 0-9 per row, as an array of (rows, length) bytes."""
    pairs = np.empty((len(rows), (length + 1) // 2), dtype=np.uint16)
    per_draw = _CHARACTERS_PER_DRAW // 2
    for pair in range(pairs.shape[1]):
        if pair % per_draw == 0:
            bits = draw(key + pair // per_draw & (1 << 64) - 1, rows)
        pairs[:, pair] = _PAIRS[(bits >> np.uint64(10 * (pair % per_draw))) & np.uint64(1023)]
    return np.ascontiguousarray(pairs.view(np.uint8)[:, :length])


def draw_bytes(key: int, rows: Rows, length: int) -> npt.NDArray[np.uint8]:
    """Return ``length`` random bytes per row, as an array of (rows, length) bytes."""
    words = np.empty((len(rows), (length + 7) // 8), dtype="<u8")
    for word in range(words.shape[1]):
        words[:, word] = draw(key + word & (1 << 64) - 1, rows)
    return np.ascontiguousarray(words.view(np.uint8)[:, :length])


class Ranks:
    """Draws of ranks 0 to ``count - 1``: uniform, or the more frequent the lower the rank.

    Parameters
    ----------
    count
        How many ranks there are.
    skew
        Rank r comes in proportion to ``1 / (r + 1) ** skew`` (Zipf's law); 0: all ranks alike.
    """

    def __init__(self, count: int, skew: float) -> None:
        self._count = count
        self._ceilings: npt.NDArray[np.float64] | None = None
        if skew > 0:
            weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
            self._ceilings = np.cumsum(weights / weights.sum())
            self._ceilings[-1] = 1.0

    def draw(self, key: int, rows: Rows) -> npt.NDArray[np.int64]:
        """Return one rank per row."""
        if self._ceilings is None:
            return draw_below(key, rows, self._count).view(np.int64)
        return np.searchsorted(self._ceilings, draw_unit(key, rows), side="right").astype(np.int64, copy=False)
