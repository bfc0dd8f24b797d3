"""Privacy: what does the model give away about the records it was trained on?"""
