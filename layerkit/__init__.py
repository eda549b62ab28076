"""layerkit: an image compiler and lazy-loading layer store for sandboxes."""

__version__ = "0.1.0"
