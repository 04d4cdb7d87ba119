"""The stages that shorten a view, their input and output (a draft), and the rules for when they run."""
