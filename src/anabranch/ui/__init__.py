"""What people look at while a query runs."""

from anabranch.ui.live import LiveView

__all__ = ["LiveView"]
