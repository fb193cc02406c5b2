"""The channel-slices controller: one ResourceSlice with an IMEX channel and a daemon per simulated node."""

from controllers.channel_slices.options import ChannelSlicesOptions
from controllers.channel_slices.setup import DECLARATION, setup

__all__ = ["DECLARATION", "ChannelSlicesOptions", "setup"]
