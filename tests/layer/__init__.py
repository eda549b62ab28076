"""Tests of layerkit.layer."""
