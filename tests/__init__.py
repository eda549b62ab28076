"""Tests of layerkit."""
