"""The sample data sets and models that a new team finds, each with an effect of known size; `recipe` makes them again."""
