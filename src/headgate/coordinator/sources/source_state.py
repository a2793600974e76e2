"""A source's part of a checkpoint: the enumerator's state, and what its coordinator knows better.

Never: change what version 1 means; golden bytes in ``tests/golden``.

An enumerator that is restored from a state older than its last assignments still has splits that readers hold. Until
it assigns them (and the coordinator swallows that) they are in its state and with the readers. So that nobody reads
them twice, the state says which these are.
"""

from __future__ import annotations

import msgspec

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.protocol.state import SplitState

_VERSION = b"1"
_WHAT = "the state of a source"


class SourceState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint and the log hold of a source.

    Parameters
    ----------
    enumerator
        The enumerator's state, as its ``state_serializer`` wrote it.
    assigned
        Ids of splits that may be in it though readers have them, or have finished them.
    parked
        Splits that are not in it, by the failed reader that they wait for. Empty in a checkpoint.
    """

    enumerator: bytes
    assigned: tuple[str, ...] = ()
    parked: dict[int, tuple[SplitState, ...]] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SourceState)


def encode_source_state(state: SourceState) -> bytes:
    """Return the bytes of a source's state."""
    return _VERSION + _encoder.encode(state)


def decode_source_state(data: bytes) -> SourceState:
    """Return what `encode_source_state` made the bytes of.

    Raises
    ------
    UnsupportedVersionError
        Another version wrote them.
    CorruptStateError
        The bytes are not a stored state of a source.
    """
    version = data[:1]
    if version != _VERSION and version.isdigit():
        raise UnsupportedVersionError(
            f"{_WHAT} has version {version.decode()}, this Headgate reads version {_VERSION.decode()}. Restart with "
            "the Headgate version that wrote it, or a newer one.",
            what=_WHAT,
            expected=_VERSION.decode(),
            found=version.decode(),
        )
    try:
        if version != _VERSION:
            raise msgspec.DecodeError(f"it begins with {version!r}")
        return _decoder.decode(data[1:])
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{_WHAT} cannot be read: {error}.", what=_WHAT, found=data[:200]) from error
