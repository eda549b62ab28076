"""Small tools of the standard library only; nothing here knows what a layer is."""
