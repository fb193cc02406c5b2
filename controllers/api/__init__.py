"""Typed projections of every kind that is used, one module per API group."""
