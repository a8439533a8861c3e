"""What travels between a coordinator and sites, and which answers are believed."""
