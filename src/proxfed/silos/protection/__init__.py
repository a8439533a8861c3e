"""What stands between a site and the world: policy, audit, keys, masks, noise."""
