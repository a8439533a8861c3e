"""Messages between a coordinator and sites, and their validation."""
