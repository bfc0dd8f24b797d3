"""Backdoor: does a hidden trigger steer the model, or poison sit in its training data?"""
