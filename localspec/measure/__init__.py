"""Whole runs, measured."""
