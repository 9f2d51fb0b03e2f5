"""Real measurements that examples and tests fit."""

from ._hudson_bay import HudsonBay as HudsonBay
from ._hudson_bay import hudson_bay as hudson_bay
from ._indomethacin import Indomethacin as Indomethacin
from ._indomethacin import indomethacin as indomethacin
from ._theophylline import Theophylline as Theophylline
from ._theophylline import theophylline as theophylline
