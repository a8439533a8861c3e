"""The version, in one place: the package, the wheel and the report read it from here."""

__version__ = "0.2.0"
