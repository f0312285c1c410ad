"""Lockstep: is this attention implementation the same function as that one, and does it learn the same?"""
