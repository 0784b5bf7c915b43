"""Attention: what each query weighs the values of its keys with, and their sum."""
