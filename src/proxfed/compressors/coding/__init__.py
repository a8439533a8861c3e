"""How compressed messages become bytes."""
