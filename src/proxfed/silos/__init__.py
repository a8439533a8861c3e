"""Between organisations: data holders who decide for themselves, and a coordinator who asks them."""
