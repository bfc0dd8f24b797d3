"""Watermark: does a model or a text carry the mark that its owner says it carries?"""
