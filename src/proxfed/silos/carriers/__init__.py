"""Carriers: they transport requests and answers between organisations."""
