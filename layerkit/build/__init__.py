"""The compiler: Layerfile to layer. Never imports the host side."""
