"""The protection of a site: policy, audit, keys, masks, noise."""
