"""The step as a timeline: the ranks of a pipeline, and the streams of one rank."""
