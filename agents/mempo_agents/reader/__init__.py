"""A reader without a model: what the scripted model makes of the questions, passages and notes in view."""
