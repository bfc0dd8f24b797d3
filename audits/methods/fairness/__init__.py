"""Fairness: are people of different groups treated alike, and how surely do we know?"""
